"""The curves of ``outrider bench gpu`` from an earlier result file: numbers in the right panel, pictures, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.report.gpu import figures

RESULTS: dict[str, Any] = {
    "machine": {"device": "Some GPU", "torch": "2", "transformers": "5"},
    "size": "8b",
    "by_gamma": [{"gamma": 1, "median": 6.0}, {"gamma": 16, "median": 21.0}],
    "by_context": [{"context": 512, "median": 5.0}, {"context": 16384, "median": 7.0}],
    "by_context_speculative": {"skipped": "no time"},
    "by_rows": [{"rows": 1, "median": 5.0}],
}


def show(path: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["bench", "gpu", "--from", str(path), *words], env={"COLUMNS": "120"})


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(RESULTS), encoding="utf-8")
    return path


def test_a_panel_for_every_curve_that_has_points() -> None:
    (figure,) = figures(RESULTS)
    assert "Some GPU" in figure.caption and "8b" in figure.caption
    found = [(panel.title, [(line.label, line.xs, line.ys) for line in panel.curves]) for panel in figure.panels]
    assert found == [
        ("Guesses", [("with a draft model", (1, 16), (6.0, 21.0))]),
        ("Context", [("plain", (512, 16384), (5.0, 7.0))]),
    ]
    assert all(panel.y_limits[1] > max(panel.curves[0].ys) for panel in figure.panels)


def test_shown_again_without_measuring(written: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = show(written, "--plot", str(tmp_path / "plots"))
    assert result.exit_code == 0, result.output
    assert "ms a step from gamma 1 to 16" in result.stdout and "6.00 to 21.00" in result.stdout
    assert result.stdout.count("┤") == 2 * 6, "two pictures in the terminal"
    assert (tmp_path / "plots" / "gpu-curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(show(written, "--json").stdout) == RESULTS


def test_a_failure_in_the_file_is_still_one(written: Path) -> None:
    written.write_text(json.dumps(RESULTS | {"identity": {"error": "no"}}), encoding="utf-8")
    assert show(written).exit_code == 1


@pytest.mark.parametrize(
    ("text", "words", "match"),
    [
        (None, (), "cannot be read"),
        ("not JSON", (), "name a file that --out wrote"),
        ("[]", (), "name a file that --out wrote"),
        (json.dumps({"machine": {"device": "x", "torch": "", "transformers": ""}}), ("--plot=p",), "--section curves"),
    ],
)
def test_files_that_say_nothing(text: str | None, words: tuple[str, ...], match: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    result = show(path, *words)
    assert result.exit_code != 0 and match in str(result.exception)
