"""Tests have a cache of their own: see ``session_cache`` in tests/conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers as tf

import library
from outrider.runtime.cache_dir import cache_dir

pytest.importorskip("numba")


def test_models_of_tests_leave_nothing_in_the_users_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`outrider models list` showed dozens of directories of pytest after `make test`."""
    prepared = library.prepared(folder, tf.AutoConfig.from_pretrained(folder), "numba", "int8").folder
    assert prepared.parent == cache_dir() and prepared.is_dir()
    monkeypatch.delenv("OUTRIDER_CACHE", raising=False)
    assert not (cache_dir() / prepared.name).exists()
