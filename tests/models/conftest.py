"""A small model directory for tests that load or prepare one."""

from __future__ import annotations

from pathlib import Path

import pytest

import library


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return library.save_llama(tmp_path / "target")
