"""The target that drafts are trained for."""

from __future__ import annotations

from typing import Any

import pytest

import library
from outrider.models.hub import loading


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> loading.Loaded:
    return loading.load(str(library.save_llama(tmp_path_factory.mktemp("distill") / "llama")), "cpu", "float32")
