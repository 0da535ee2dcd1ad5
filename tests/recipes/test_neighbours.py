"""The recipe that measures waiting: real processes, a tiny model, every policy where it was asked for."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import library
import pytest


@pytest.mark.slow
def test_processes_decode_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    recipe = importlib.import_module("neighbours")
    monkeypatch.setattr(recipe, "POLICIES", {"only": {"OMP_WAIT_POLICY": "PASSIVE"}})
    target, out = library.save_llama(tmp_path / "target"), tmp_path / "speeds.json"
    words = ["neighbours.py", str(target), "--processes", "2", "--tokens", "4", "--repeats", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    recipe.main()
    assert len(json.loads(out.read_text())["2"]["only"]) == 2
    assert "2 at once, only" in capsys.readouterr().out
