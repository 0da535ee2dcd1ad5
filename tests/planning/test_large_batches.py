"""Choosing gamma for rows that are all waited for: a call ends with its last row."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outrider.drafters import Nothing
from outrider.planning.adaptive import Adaptive
from outrider.planning.policies import Auto, JointPlanner, Setting
from outrider.planning.setting import RESTS_AFTER
from outrider.planning.step_clock import Timing

STEPS = [1.0, 1.6, 1.8, 1.97, 2.15, 2.3, 2.4, 2.5, 2.6]
"""Steps of sixteen rows by guesses, as measured for a small model on a large GPU."""


def decoded(
    planner: JointPlanner, alphas: Sequence[float], tokens: int, steps: Sequence[float], seed: int, waking: float = 0.0
) -> float:
    """Rows of so many tokens until the last is done; ``steps``: seconds by guesses, and ``waking`` more for the first
    of them behind a rest -> seconds in all."""
    chance, left, seconds, idle = random.Random(seed), [tokens] * len(alphas), 0.0, RESTS_AFTER + 1
    for row in range(len(alphas)):
        planner.admit(row)
    while any(left):
        planner.begin(left, waiting=False)
        asked = [planner.choose(row) if left[row] else 0 for row in range(len(left))]
        wakes = max(asked) > 0 and idle > RESTS_AFTER and waking > 0
        idle = 0 if max(asked) else idle + 1
        taken = steps[max(asked)] + waking * wakes
        planner.timed(Timing(max(asked) + 1, taken, waking=wakes))
        seconds += taken
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


@pytest.mark.parametrize("waking", [8.0, 14.0])
@pytest.mark.parametrize(
    ("alphas", "least", "most"),
    [
        ((0.45, 0.7, 0.7, 0.7), 0.99, 1.03),
        ((0.5, 0.55, 0.6, 0.65), 0.97, 1.03),
        ((0.8,) * 4, 0.0, 0.7),
        ((0.8,), 0.0, 0.65),
    ],
)
def test_a_few_rows_are_not_woken_for_nothing(
    alphas: tuple[float, ...], least: float, most: float, waking: float
) -> None:
    """Four requests ran at 0.93 of the plain speed: every call began to guess, which costs as much as eight plain runs
    or more, and gave up when the least of four noisy numbers was low. By the same token, guesses that paid were given
    up: rows that are all alike got a third of what they could."""
    policy, took = Auto(), []
    steps = [1.0, 1.55, 1.62, 1.69, 1.76, 1.82, 1.9, 1.95, 2.02]
    given = Setting(len(alphas), len(steps) - 1, Nothing(), "shape", splits=False, joint=True)
    for call in range(30):
        planner = policy.start(given)
        assert isinstance(planner, JointPlanner)
        took.append(decoded(planner, alphas, 128, steps, call, waking) / 128)
    assert least <= sum(took[10:]) / 20 <= most
