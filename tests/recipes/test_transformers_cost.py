"""Outrider's loop over transformers' own, on a tiny model: all combinations, as JSON."""

from __future__ import annotations

import json

import pytest
import torch
import transformers_cost

import tiny


def test_every_combination_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a combination that is left out, and turns that are not counted as they were asked for."""
    monkeypatch.setattr(transformers_cost, "random_model", lambda: tiny.build("llama"))
    monkeypatch.setattr(transformers_cost, "inputs_of", lambda *_: {"input_ids": torch.tensor([[5, 6, 7]] * 2)})
    asked = "x --random --dtypes float32,float64 --batches 2 --drafts none,auto --tokens 4 --turns 2 --json"
    monkeypatch.setattr(transformers_cost.sys, "argv", asked.split())
    transformers_cost.main()
    rows = json.loads(capsys.readouterr().out)["rows"]
    seen = {(row["dtype"], row["sampling"], row["draft"], row["n"]) for row in rows}
    kinds = {(d, s, g, 2) for d in ("float32", "float64") for s in ("greedy", "top_p") for g in ("none", "auto")}
    assert seen == kinds and all(row["ratio"] > 0 and len(row["quartiles"]) == 2 for row in rows)
