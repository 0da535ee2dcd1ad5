"""A small model directory for tests that load or prepare one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as tf

import library


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return library.save_llama(tmp_path / "target")


@pytest.fixture
def narrow(folder: Path) -> Path:
    """The same model, saved in bfloat16."""
    tf.LlamaForCausalLM.from_pretrained(folder).to(torch.bfloat16).save_pretrained(folder)
    return folder
