"""``outrider theory``: the numbers it prints are those of theory.py, and its figures are the paper's."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from outrider import theory
from outrider.cli.main import app
from outrider.errors import BadOption
from outrider.report.theory import Case, figures


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["theory", *words])


def answer(*words: str) -> dict[str, Any]:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_the_optimum() -> None:
    seen = answer("--alpha", "0.75", "--c", "0.02", "--operations", "0.01")
    best = seen["best"]
    assert best["gamma"] == theory.optimal_gamma(0.75, 0.02, 32) == 9
    assert best["tokens"] == theory.expected_tokens(0.75, 9)
    assert best["speedup"] == theory.speedup(0.75, 9, 0.02) == max(row["speedup"] for row in seen["by_gamma"])
    assert best["operations"] == theory.operations(0.75, 9, 0.01)
    assert [row["gamma"] for row in seen["by_gamma"]] == list(range(33))


def test_table_and_verdict() -> None:
    result = run("--alpha", "0.75", "--c", "0.02")
    assert "Best: γ = 9: 3.77 tokens per target run, 3.20 times as fast, 2.65 times the operations." in result.stdout
    marked = [line for line in result.stdout.splitlines() if "◀" in line]
    assert len(marked) == 1 and marked[0].split()[:5] == ["9", "3.77", "3.20", "2.65", "0.26"]
    assert all(f"yours: γ={g}" in result.stdout for g in (9,)) and result.stdout.count("┤") == 4 * 6
    assert "┤" not in run("--alpha", "0.75", "--no-figures").stdout


def test_measured_widths_change_the_optimum() -> None:
    seen = answer("--alpha", "0.75", "--c", "0.02", "--width-costs", "1:1,5:1.3,9:1.8")
    costs = theory.Costs(theory.interpolated({1: 1.0, 5: 1.3, 9: 1.8}), 0.02)
    assert seen["best"]["gamma"] == theory.optimal_gamma(0.75, costs, 8) == 4
    assert len(seen["by_gamma"]) == 9  # no further than was measured


def test_a_guess_that_costs_too_much() -> None:
    assert "does not pay" in run("--alpha", "0.1", "--c", "0.5", "--no-figures").stdout


def test_endless_acceptance_is_valid_json() -> None:
    assert answer("--alpha", "1")["oracle_tokens"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--alpha", "1.5"], "--alpha must be between 0 and 1, got 1.5"),
        (["--alpha", "0.5", "--c", "-1"], "--c must be a number of at least 0, got -1"),
        (["--alpha", "0.5", "--operations", "-1"], "--operations must be a number of at least 0"),
        (["--alpha", "0.5", "--most", "-1"], "--most must be from 1 to 1000 guesses, got -1"),
        (["--alpha", "0.5", "--width-costs", "wide"], "--width-costs must look like 1:1,5:1.3,9:1.8, got 'wide'"),
        (["--alpha", "0.5", "--width-costs", "2:1,5:2"], "--width-costs must start at width 1"),
        (["--alpha", "0.5", "--width-costs", "1:1,5:-2"], "--width-costs must be costs above 0"),
        (["--alpha", "0.5", "--c", "nan"], "--c must be a number of at least 0, got nan"),
    ],
)  # fmt: skip
def test_bad_options(words: list[str], message: str) -> None:
    """The option is named: --c -1 was answered by "draft must be"."""
    result = run(*words)
    assert isinstance(result.exception, BadOption) and message in str(result.exception)


def test_the_figures_curves_are_the_formulas() -> None:
    """Read each figure at alpha 0.8 and compare with Table 1 and with Theorem 3.8 gamma by gamma."""
    two, three, four = figures(Case(0.8, theory.Costs(draft=0.05), 32))
    at = {
        figure.name + panel.title: {c.label: c.ys[c.xs.index(0.8)] for c in panel.curves}
        for figure in (two, three, four)
        for panel in figure.panels
    }
    tokens, best, speed, work = at.values()
    assert f"{tokens['γ=5']:.2f}" == "3.69" == f"{speed['γ=5']:.2f}" and f"{tokens['γ=∞']:.2f}" == "5.00"
    assert f"{work['γ=5']:.2f}" == "1.63"
    by_formula = {g: (1 - 0.8 ** (g + 1)) / (0.2 * (g * 0.05 + 1)) for g in range(1, 50)}
    assert best["c=0.05"] == best["yours"] == max(by_formula, key=by_formula.__getitem__)
    assert speed[f"yours: γ={best['yours']}"] == pytest.approx(max(by_formula.values()))
    assert [panel.mark for figure in (two, three) for panel in figure.panels] == [
        (0.8, tokens[f"yours: γ={best['yours']}"]), (0.8, best["yours"]),
    ]  # fmt: skip


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is printed or written before that is found out."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--alpha", "0.75", "--plot", str(tmp_path / "new"))
    assert isinstance(result.exception, BadOption) and "pip install matplotlib" in str(result.exception)
    assert result.stdout == "" and not (tmp_path / "new").exists()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs the plot extra")
def test_pictures(tmp_path: Path) -> None:
    result = run("--alpha", "0.75", "--c", "0.02", "--plot", str(tmp_path / "new"), "--no-figures")
    assert result.exit_code == 0, result.output
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert sorted(pictures) == ["figure-2.png", "figure-3.png", "figure-4.png"]
    assert all(data.startswith(b"\x89PNG") and len(data) > 10_000 for data in pictures.values())
    (tmp_path / "file").write_text("")
    taken = run("--alpha", "0.75", "--plot", str(tmp_path / "file"), "--no-figures")
    assert isinstance(taken.exception, BadOption) and "is a file; name a directory" in str(taken.exception)


@pytest.mark.parametrize("most", [0, -1, 99_999_999])
def test_a_longest_draft_that_makes_no_sense(most: int) -> None:
    """None at all was answered with "speculation does not pay", and a hundred million took minutes."""
    result = run("--alpha", "0.8", "--most", str(most))
    assert isinstance(result.exception, BadOption) and not result.stdout
    assert str(result.exception) == f"--most must be from 1 to 1000 guesses, got {most}"


def test_costs_of_plain_steps_alone() -> None:
    """They leave no room for a guess, and the answer was that speculation does not pay."""
    result = run("--alpha", "0.8", "--width-costs", "1:1")
    assert isinstance(result.exception, BadOption) and "must have a width above 1" in str(result.exception)
