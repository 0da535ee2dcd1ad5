"""The warning that another way of loading is faster."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from calls import batch, call

import tiny
from outrider.hf import advice


def test_said_once_where_an_engine_could_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' layers are several times slower than an engine: said once for a model, not in every call."""
    monkeypatch.setattr(advice, "chosen_engine", lambda *args, **kwargs: "numba")
    monkeypatch.setattr(advice, "GIVEN", set())
    model = tiny.build("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model, batch("llama"), max_new_tokens=2)  # made here: there is no path to load
    model.name_or_path = "some/model"
    with pytest.warns(UserWarning, match=r"outrider\.load\('some/model'\) can run this model on a CPU with numba"):
        call(model, batch("llama"), max_new_tokens=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model, batch("llama"), max_new_tokens=2)


def test_not_said_of_other_families() -> None:
    """Catches advice that cannot be followed."""
    model = tiny.build("gpt2")
    model.name_or_path = "some/gpt2"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advice.advise_loading(model)


def test_numba_is_not_imported_for_it() -> None:
    """The first call took a quarter of a second more, to import what is only recommended."""
    script = """
import sys, types, torch
from outrider.hf.advice import advise_loading
from transformers import LlamaConfig
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2)
weights = [types.SimpleNamespace(numel=lambda: 10**9, element_size=lambda: 4)]
model = types.SimpleNamespace(
    name_or_path="some/model", device=torch.device("cpu"), config=config, parameters=lambda: weights
)
advise_loading(model)
print(sorted({"numba", "llvmlite"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    pytest.importorskip("numba")
    assert "can run this model on a CPU with numba" in done.stderr
