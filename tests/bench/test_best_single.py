"""``draft="auto"`` beside the best single draft of the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import library
from outrider.bench.best_single import auto_rows
from outrider.cli.main import app


def test_the_best_of_those_that_are_not_auto() -> None:
    """Catches a best that is "auto" itself, a ratio upside down, and one of sums of another draft."""
    slow, fast, auto = [(10.0, 5.0), (10.0, 5.0)], [(10.0, 2.0), (10.0, 3.0)], [(10.0, 4.0), (10.0, 1.0)]
    work: dict[tuple[str, int | str], Any] = {
        ("copy", 4): slow, ("head", "auto"): fast, ("auto", 4): auto, ("auto", 1): slow,
    }  # fmt: skip
    [row] = auto_rows(1.0, "one", work)
    assert (row.draft, row.gamma, row.auto_gamma, row.ratio) == ("head", "auto", 4, 1.0)
    assert row.interval[0] == pytest.approx(0.5) and row.interval[1] == pytest.approx(3.0)
    assert auto_rows(1.0, "one", {("auto", 4): auto}) == auto_rows(1.0, "one", {("copy", 4): slow}) == []


def test_every_draft_there_is_in_one_run(tmp_path: Path) -> None:
    """--draft all was looked for on the hub. A draft that was named, too, is measured once, in its place."""
    folder, prompts = library.save_llama(tmp_path / "target"), tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"task": task, "prompt": "a b a b"}) for task in ("one", "other")))
    words = ["measure", str(folder), "-d", "copy", "-d", "all", "-n", "4", "--prompts", str(prompts), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert list(report["drafters"]) == ["copy", "auto", "ngram", "suffix"]
    assert [row["task"] for row in report["auto_over_best"]] == ["one", "other", "all"]
    assert all(row["draft"] != "auto" and row["ratio"] > 0 for row in report["auto_over_best"])
