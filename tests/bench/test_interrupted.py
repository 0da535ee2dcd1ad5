"""Ctrl-C in the commands that measure the machine, and prompts they cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider.bench import identity, start
from outrider.cli import bench_cpu
from outrider.cli.main import app
from outrider.errors import BadOption


def test_starts_that_were_finished_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the last of five processes threw the other four away."""
    stage = {"seconds": 1.0, "resident": 2e6, "private": 1e6, "peak": 3e6, "code": 1e6}
    told = {"engine": "torch", "weights": "float32", "module": "torch"}
    run: dict[str, Any] = dict.fromkeys(start.STAGES, stage) | told
    calls = iter(range(100))

    def once(*given: Any) -> dict[str, Any]:
        if next(calls) == 3:  # one is not counted
            raise KeyboardInterrupt
        return run

    monkeypatch.setattr(start, "start_once", once)
    result = CliRunner().invoke(app, ["bench", "start", "gpt-small", "--json"])
    assert result.exit_code == 130 and json.loads(result.stdout)["repeats"] == 2
    assert "2 of 5 processes were finished" in result.stderr
    calls = iter(range(3, 100))
    assert CliRunner().invoke(app, ["bench", "start", "gpt-small"]).exit_code != 0  # nothing was finished


def test_sections_that_were_finished_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the second section showed nothing of the first."""

    def pressed(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(identity, "replayed_is_eager", pressed)
    words = ["bench", "gpu", "--size", "tiny", "--device", "cpu", "--section", "identity", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 130 and "sections that were finished" in result.stderr, result.output
    assert "noise" in json.loads(result.stdout)


def test_tables_of_engines_are_not_cut_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe, which counts as 80 columns, a table with nine columns lost most of its figures to ellipses."""
    tasks = ("writing", "reasoning", "translation", "summarisation", "retrieval", "mathematics", "all")
    row = {
        "way": "outrider speculative", "temperature": 0.0, "tokens_per_second": 123.4, "interval": [120.1, 125.2],
        "quartiles": [111.1, 133.3], "first_seconds": 0.12, "prefill_tokens_per_second": 345.6,
        "whole_tokens_per_second": 99.9, "floor_share": 0.5,
        "over_plain": 2.34, "over_plain_interval": [2.1, 2.5], "same_as_plain": 12, "compared": 12, "ours_over": 1.0,
        "ours_over_interval": [1.0, 1.0], "our_plain_over": 0.5, "agreement": 128.0,
    }  # fmt: skip
    report = {
        "cpu": "a CPU", "threads": 2, "target": "m", "prompts": 12, "tokens": 128, "engines": {},
        "rows": [row | {"task": task} for task in tasks],
    }  # fmt: skip
    bench_cpu.show(report)
    shown = capsys.readouterr().out
    assert "…" not in shown and all(task in shown for task in tasks) and "123.4 (120.1-125.2)" in shown


def test_prompts_that_are_no_text(tmp_path: Path) -> None:
    """A file in Latin-1, or an empty one, was a traceback after the model had been loaded."""
    for name, data, says in (("a.txt", b"caf\xe9\n", "not UTF-8"), ("b.txt", b"\n\n", "is empty")):
        (tmp_path / name).write_bytes(data)
        error = CliRunner().invoke(app, ["verify", "gpt-small", "--prompts", str(tmp_path / name)]).exception
        assert isinstance(error, BadOption) and says in str(error)
    error = CliRunner().invoke(app, ["measure", "gpt-small", "--prompts", str(tmp_path / "a.txt")]).exception
    assert isinstance(error, BadOption) and "not UTF-8" in str(error)
    for place, says in ((tmp_path, "is a directory; name a file"), (tmp_path / "b.txt", 'lines such as {"prompt"')):
        error = CliRunner().invoke(app, ["measure", "gpt-small", "--prompts", str(place)]).exception
        assert isinstance(error, BadOption) and says in str(error), "a directory was said not to exist"
