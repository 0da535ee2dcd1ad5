"""Fused layers as a GPU runs them, on a CPU: plain functions in place of the kernels."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import transformers as tf

import plain_kernels
from outrider.core.protocols import LanguageModel
from outrider.kernels.triton import available
from outrider.models.transformers.model import HuggingFaceModel


def as_on_a_gpu_fused(network: tf.PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """With plain functions in place of the kernels: steps of the numba engine cannot be captured."""
    rows = SimpleNamespace(**{n: getattr(plain_kernels, n) for n in plain_kernels.ROWS})
    monkeypatch.setitem(sys.modules, "outrider.kernels.triton.rows", rows)
    monkeypatch.setitem(sys.modules, "outrider.kernels.triton.attention", SimpleNamespace(attend=plain_kernels.attend))
    model = HuggingFaceModel(network)
    with monkeypatch.context() as patch:
        patch.setattr(available, "run_on", lambda device: True)
        assert model.fuse()
    model.facts = replace(model.facts, batch_invariant=True, capacity_invariant=True, runs_trees=True)
    model.engine.facts, model.engine.trims_prefill = model.facts, True
    return model
