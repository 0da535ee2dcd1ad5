"""Plain, speculative and transformers' decoding of batches, on tiny models: every combination, counted and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import batch_cost
import pytest
import torch

import library


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_every_combination_is_measured(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a combination left out, turns not counted as asked for, and rows compared with another row's text."""
    {"llama": library.save_llama, "t5": library.save_t5}[family](tmp_path)
    given = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    monkeypatch.setattr(batch_cost, "requests_of", lambda llm, count, file: given[:count])
    asked = f"x {tmp_path} --requests 3 --batches 1,2 --temperatures 0,1 --seed 0 --tokens 4 --turns 2 --json"
    monkeypatch.setattr(batch_cost.sys, "argv", asked.split())
    before = torch.get_num_threads()
    batch_cost.main()
    assert torch.get_num_threads() == before
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["batch"], row["temperature"]) for row in rows} == {(1, 0.0), (2, 0.0), (1, 1.0), (2, 1.0)}
    for row in rows:
        assert row["auto_over_plain"]["n"] == row["plain_over_transformers"]["n"] == 2 and row["requests"] == 3
        same = {"plain": "3/3"} | ({} if row["temperature"] else {"auto": "3/3"})
        assert row["same"] == same and row["best"] == "transformers float32"
        assert set(row["tokens_per_second"]) == {"plain", "auto", "transformers float32"}
        assert row["auto_over_transformers"]["n"] == 2


def test_a_call_for_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text at a time is measured as it is used: by a call each, with the seed of its own."""
    calls: list[tuple[list[int], int | None]] = []

    class Llm:
        def generate(self, prompt: list[int], **options: int) -> object:
            calls.append((prompt, options.get("seed")))
            return type("Output", (), {"tokens": (7, 8)})()

    given = [[5, 6], [7]]
    assert batch_cost.ours(Llm(), given, {"seed": [3, 4]}, each=True) == [[7, 8], [7, 8]]
    assert calls == [([5, 6], 3), ([7], 4)]
    calls.clear()
    batch_cost.ours(Llm(), given, {"temperature": 0.0}, each=True)
    assert calls == [([5, 6], None), ([7], None)]
