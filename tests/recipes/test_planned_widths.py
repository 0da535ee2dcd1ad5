"""The recipe that shows what the planner chooses: both ways of decoding, a tiny model, figures that add up."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import library
import pytest


def test_figures_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    recipe = importlib.import_module("planned_widths")
    target, out = library.save_llama(tmp_path / "target"), tmp_path / "widths.json"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text, "task": text}) + "\n" for text in ("one", "two two two")))
    words = ["planned_widths.py", str(target), "--tokens", "12", "--prompts", str(prompts), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    recipe.main()
    found = json.loads(out.read_text())
    runs = sum(found["runs_by_guesses"].values())
    assert len(found["by_prompt"]) == 2 and found["tokens_per_run"] * runs == pytest.approx(24)
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["steps"] and found["steps"][0]["runs"][0] == 1
    assert "runs_by_guesses" in capsys.readouterr().out


def test_another_text_is_an_error() -> None:
    recipe = importlib.import_module("planned_widths")

    class Fake:
        def __init__(self, tokens: list[int]) -> None:
            self.tokens, self.trace = tokens, None

        def generate(self, text: str, **options: object) -> Fake:
            return self

    with pytest.raises(SystemExit, match="prompt 0: the texts differ"):
        ways = {"plain": (Fake([1]), 0), "speculative": (Fake([2]), 4)}
        recipe.decode(ways, ["a"], {"temperature": 0})
