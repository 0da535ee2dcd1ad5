"""What a hierarchy would gain, against dice, against the formulas of one level, and by the command."""

from __future__ import annotations

import json
import random
from math import ceil, isclose
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.report.theory import hierarchy_region
from outrider.theory import Costs, Hierarchy, optimal_gamma, speedup


def rolled(alpha: float, guesses: int, gamma: int, dice: random.Random) -> int:
    """Runs of a middle model until it has given gamma tokens, guess by guess."""
    runs = given = 0
    while given < gamma:
        kept = 0
        while kept < guesses and dice.random() < alpha:
            kept += 1
        runs, given = runs + 1, given + kept + 1
    return runs


@pytest.mark.parametrize(("alpha", "guesses", "gamma"), [(0.7, 2, 6), (0.3, 4, 5), (0.9, 1, 9), (0.95, 8, 4)])
def test_runs_of_the_middle_model(alpha: float, guesses: int, gamma: int) -> None:
    """Catches tokens beyond gamma that are counted as if they were kept for the next draft."""
    dice, times = random.Random(7), 40_000
    counted = sum(rolled(alpha, guesses, gamma, dice) for _ in range(times)) / times
    expected = Hierarchy(0.8, 0.1, alpha).middle_runs(guesses, gamma)[gamma]
    assert abs(counted - expected) < 5 * gamma / times**0.5


def test_certain_guesses_and_none() -> None:
    sure, never = Hierarchy(0.8, 0.1, 1.0), Hierarchy(0.8, 0.1, 0.0)
    for gamma in range(1, 9):
        assert isclose(sure.middle_runs(2, gamma)[gamma], ceil(gamma / 3))
        assert isclose(never.middle_runs(2, gamma)[gamma], gamma)
        assert isclose(sure.speedup(0, gamma), speedup(0.8, gamma, 0.1))  # no guesses below: one level


def test_the_best_of_each_pair() -> None:
    """Of the lower drafter alone what it costs counts, and how often the target itself keeps its guesses."""
    widths = [1.0, 1.2, 1.5, 1.9, 2.4]
    levels = Hierarchy(0.8, 0.1, 0.7, 0.02, 0.65, target_widths=widths)
    best = levels.best(4)
    middle, lower = Costs(widths, 0.1), Costs(widths, 0.02)
    assert isclose(best.middle_alone, speedup(0.8, optimal_gamma(0.8, middle, 4), middle))
    assert isclose(best.lower_alone, speedup(0.65, optimal_gamma(0.65, lower, 4), lower))
    tried = [levels.speedup(guesses, gamma) for guesses in range(1, 9) for gamma in range(5)]
    assert isclose(best.speedup, max(tried)) and isclose(best.speedup, levels.speedup(best.guesses, best.gamma))
    assert isclose(best.gain, best.speedup / max(best.middle_alone, best.lower_alone))


def test_widths_of_the_middle_model_count() -> None:
    free, dear = (Hierarchy(0.9, 0.1, 0.7, 0.01, middle_widths=w) for w in (1.0, [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert free.best(8).gain > 1.2 and dear.best(8).gain < 1


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["theory", "--alpha", "0.9", *words])


def test_by_the_command() -> None:
    words = ("--c", "0.06", "--lower-alpha", "0.7", "--lower-c", "0.008")
    seen = json.loads(run(*words, "--json").stdout)["hierarchy"]
    best = Hierarchy(0.9, 0.06, 0.7, 0.008).best(32)
    assert seen["speedup"] == best.speedup and seen["gain"] == best.gain > 1
    assert "The hierarchy pays" in run(*words, "--no-figures").stdout
    assert "does not pay" in run("--c", "0.5", "--lower-alpha", "0.9", "--no-figures").stdout
    assert "hierarchy" not in json.loads(run("--json").stdout)


def test_the_region() -> None:
    """Catches a mark beside its own curve."""
    levels = Hierarchy(0.9, 0.06, 0.8, 0.006, 0.75)
    (panel,) = hierarchy_region(levels, 16).panels
    (yours,) = [line for line in panel.curves if line.yours]
    assert panel.mark is not None and panel.mark == (0.06, yours.ys[yours.xs.index(0.06)])
    assert [line.label for line in panel.curves] == [f"{a} kept below" for a in (0.5, 0.7, 0.8, 0.9)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lower-c", "0.1"], "--lower-c 0.1 is of a hierarchy: give --lower-alpha, too"),
        (["--lower-alone", "0.1"], "--lower-alone 0.1 is of a hierarchy: give --lower-alpha, too"),
        (["--lower-alpha", "0.5"], "--c must be above 0 with --lower-alpha"),
        (["--c", "0.1", "--lower-alpha", "2"], "--lower-alpha must be between 0 and 1, got 2"),
        (["--c", "0.1", "--lower-alpha", "0.5", "--lower-alone", "nan"], "--lower-alone must be between 0 and 1"),
        (["--c", "0.1", "--lower-alpha", "0.5", "--lower-c", "-1"], "--lower-c must be a number of at least 0, got -1"),
    ],
)
def test_bad_levels(words: list[str], message: str) -> None:
    result = run(*words)
    assert result.exit_code != 0 and message in str(result.exception)
