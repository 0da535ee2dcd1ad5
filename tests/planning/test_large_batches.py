"""Choosing gamma for rows that are all waited for: a call ends with its last row."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outrider.drafters import Nothing
from outrider.planning.adaptive import Adaptive
from outrider.planning.policies import Auto, JointPlanner, Setting
from outrider.planning.step_clock import Timing

STEPS = [1.0, 1.6, 1.8, 1.97, 2.15, 2.3, 2.4, 2.5, 2.6]
"""Steps of sixteen rows by guesses, as measured for a small model on a large GPU."""


def decoded(planner: JointPlanner, alphas: Sequence[float], tokens: int, steps: Sequence[float], seed: int) -> float:
    """Rows of so many tokens until the last is done; ``steps``: seconds by guesses -> seconds in all."""
    chance, left, seconds = random.Random(seed), [tokens] * len(alphas), 0.0
    for row in range(len(alphas)):
        planner.admit(row)
    while any(left):
        planner.begin(left, waiting=False)
        asked = [planner.choose(row) if left[row] else 0 for row in range(len(left))]
        planner.timed(Timing(max(asked) + 1, steps[max(asked)]))
        seconds += steps[max(asked)]
        for row, alpha in enumerate(alphas):
            if left[row]:
                kept = next((k for k in range(asked[row]) if chance.random() >= alpha), asked[row])
                planner.learn(row, asked[row], kept, min(kept + 1, asked[row]))
                left[row] = max(0, left[row] - kept - 1)
        planner.ended(left)
    return seconds


def test_a_row_that_ends_counts_once() -> None:
    """Of two runs under way the later one ends without it once more."""
    policy = Auto()
    planner = policy.start(Setting(1, 4, Nothing(), "shape", splits=False, joint=True))
    assert isinstance(planner, Adaptive) and planner.experience is not None
    planner.admit(0)
    counted, planner.experience.done = [], lambda row: counted.append(row)  # type: ignore[method-assign]
    for _ in range(2):
        planner.begin([3], waiting=False)
        planner.choose(0)
    for _ in range(2):
        planner.ended([0])
    assert len(counted) == 1


@pytest.mark.parametrize(("slowest", "least", "most"), [(0.3, 0.95, 1.01), (0.9, 0.0, 0.7)])
def test_many_rows_are_done_when_the_last_is(slowest: float, least: float, most: float) -> None:
    """Guesses that paid on average made sixteen requests a fifth slower: the least lucky of them was waited for."""
    policy, alphas, took = Auto(), [slowest, *[0.85] * 15], []
    given = Setting(len(alphas), len(STEPS) - 1, Nothing(), "shape", splits=False, joint=True)
    for call in range(30):
        planner = policy.start(given)
        assert isinstance(planner, JointPlanner)
        took.append(decoded(planner, alphas, 128, STEPS, call) / 128)
    assert max(took) < 1.05, "not even while little is known"
    assert least <= sum(took[20:]) / 10 <= most
