"""Prompts made from text files: every kind, nothing unfilled, nothing of a benchmark."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, Any]]:
    recipe = importlib.import_module("draft_prompts")
    body = "A mill {old} stood at the bend of a river. Nobody knew who had built it. " * 12
    (folder / "prose.txt").write_text("\n\n".join(f"Mill {i}\n{body}" for i in range(40)), encoding="utf-8")
    pairs = "\n".join(
        f"The train number {i} was late again.\tDer Zug Nummer {i} war schon wieder spät." for i in range(90)
    )
    (folder / "pairs.tsv").write_text(pairs + "\n", encoding="utf-8")
    given = ["--prose", str(folder / "prose.txt"), "--pairs", str(folder / "pairs.tsv"), "--count", "280"]
    monkeypatch.setattr(sys, "argv", ["draft_prompts.py", *given, "--out", str(folder / "out.jsonl"), *words])
    with pytest.raises(SystemExit) as end:
        recipe.main()
    assert not end.value.code
    return [json.loads(line) for line in (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]


def test_every_kind_and_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a place that is not filled, a kind that is not made, and lines broken where they were wrapped."""
    rows = made(tmp_path, monkeypatch, "--news", str(tmp_path / "pairs.tsv"))
    counts = Counter(row["task"] for row in rows)
    assert len(rows) == len({row["prompt"] for row in rows}) == 280
    assert counts.keys() == {"chat", "translation", "summary", "question", "sums", "passage"}
    assert counts["chat"] > 1.3 * counts["summary"]
    assert not any("{" in row["prompt"] or "|" in row["prompt"] for row in rows)
    assert not any("\n" in row["prompt"] for row in rows if row["task"] == "sums")
    assert any("train number" in row["prompt"] for row in rows if row["task"] == "summary")  # of the news
    assert made(tmp_path, monkeypatch, "--news", str(tmp_path / "pairs.tsv")) == rows


def test_no_question_of_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a draft that is trained on what it will be measured with."""
    rows = made(tmp_path, monkeypatch)
    known = [row["prompt"] for row in rows[:50]]
    for ascii_only in (True, False):
        lines = [json.dumps({"turns": [prompt]}, ensure_ascii=ascii_only) for prompt in known]
        (tmp_path / "bench.jsonl").write_text("\n".join(lines), encoding="utf-8")
        again = made(tmp_path, monkeypatch, "--except", str(tmp_path / "bench.jsonl"))
        assert not {row["prompt"] for row in again} & set(known)
