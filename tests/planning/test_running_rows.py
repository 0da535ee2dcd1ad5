"""A batch with empty slots: steps cost what the rows in them cost, and the planner goes by those."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.drafters import Nothing, Uniform
from outrider.planning.adaptive import Adaptive
from outrider.planning.policies import Auto
from outrider.planning.setting import Setting
from outrider.planning.step_clock import Clock, Timing
from outrider.theory import ByNumber

SLOTS = 8


def widths_of(rows: int) -> ByNumber:
    """A run costs as much as its tokens, from the fifth token on."""
    return lambda width: max(1.0, rows * width / 4) / max(1.0, rows / 4)


def planner(policy: Auto, shrinks: bool = True, joint: bool = True) -> Adaptive:
    given = widths_of if shrinks else None
    found = policy.start(Setting(SLOTS, 3, Uniform(), "shape", widths_of(SLOTS), given, joint=joint))
    assert isinstance(found, Adaptive)
    return found


def test_one_request_among_empty_slots_is_drafted_for() -> None:
    """A server with eight slots and one request priced guesses for eight rows, and never made one."""
    plan = planner(Auto())
    plan.begin([50] + [0] * 7, waiting=False)
    assert plan.ladder.runs == (1, 1, 1, 1) and plan.choose(0) > 0
    plan.begin([50] * SLOTS, waiting=False)
    assert plan.ladder.runs == (1, 2, 3, 4) and plan.choose(0) == 0
    padded = planner(Auto(), shrinks=False)
    padded.begin([50] + [0] * 7, waiting=False)
    assert padded.ladder.runs == (1, 2, 3, 4) and padded.choose(0) == 0


def test_rows_that_may_share_noise_do_not_see_each_other_end() -> None:
    """A row's end is decided by its noise, and a neighbour of the same seed may have that noise before it."""
    plan = planner(Auto(), joint=False)
    for left in ([50] * SLOTS, [50] + [0] * 7):
        plan.begin(left, waiting=False)
        assert plan.ladder.runs == (1, 2, 3, 4) and plan.choose(0) == 0


def test_a_step_is_timed_for_the_rows_that_were_in_it() -> None:
    """Steps are read after the next one has begun, whose rows may be others."""
    plan = planner(Auto())
    plan.begin([50] + [0] * 7, waiting=False)
    for _ in range(3):  # the first of a shape is not counted
        plan.timed(Timing(1, 1.0, rows=SLOTS))
        plan.timed(Timing(2, 1.5, rows=SLOTS))
    assert plan.ladder.runs == (1, 1, 1, 1)
    plan.begin([50] * SLOTS, waiting=False)
    assert plan.ladder.runs[:2] == pytest.approx((1, 1.5))


@pytest.mark.parametrize(("rows", "about"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 8), (7, 8), (8, 8)])
def test_many_rows_share_a_clock_with_about_as_many(rows: int, about: int) -> None:
    setting = Setting(SLOTS, 3, Uniform(), "shape", 1.0, widths_of)
    assert setting.running(rows).rows == about and setting.running(0) is setting
    few = Setting(6, 3, Uniform(), "shape", 1.0, widths_of)
    assert few.running(5).rows == 6  # no more than there are slots


@pytest.mark.parametrize(("joint", "keeps", "every"), [(True, True, 8), (False, True, 8), (True, False, 32)])
def test_costs_are_looked_at_seldom_only_while_nobody_guesses(
    joint: bool, keeps: bool, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches rows that decide for themselves and pass for resting while they guess."""
    looks, ladder = list[int](), Clock.ladder
    monkeypatch.setattr(Clock, "ladder", lambda clock: looks.append(clock.steps) or ladder(clock))  # type: ignore[func-returns-value]
    planner: Any = Auto().start(Setting(1, 4, Nothing(), "shape", joint=joint))
    planner.admit(0)
    for _ in range(400):
        if joint:
            planner.begin([1000], False)
        asked = planner.choose(0)
        planner.timed(Timing(asked + 1, 1 + 0.05 * asked, 0.02 * asked if asked else None, asked))
        planner.learn(0, asked, asked if keeps else 0, asked if keeps else min(asked, 1))
        if joint:
            planner.ended([1000])
    late = [step for step in looks if step > 200]
    assert abs(len(late) - 200 // every) <= 2 + (200 // 32 if not keeps else 0), late
