"""Rows of a timed batch decide together: they share a run, and mostly the last one to end is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outrider.core.prices import Ladder, Prices
from outrider.drafters import Copying, Mixture, ModelDrafter, Nothing
from outrider.models.toy import ToyModel
from outrider.planning.acceptance import PATIENCE, SHORTEST, Asking, Pause
from outrider.planning.policies import Auto, JointPlanner, Setting
from outrider.planning.step_clock import Timing

LIMIT = 4
LADDER = Ladder((1.0, 1.15, 1.3, 1.6, 2.0), (0.01, 0.03, 0.05, 0.07, 0.09))


def setting(rows: int, same_text: bool = True) -> Setting:
    return Setting(rows, LIMIT, Nothing(), "shape", joint=same_text)


def live(policy: Auto, kept: Sequence[bool], runs: int, waiting: bool = False, same_text: bool = True) -> list[int]:
    """A batch whose rows keep all guesses or none, timed by the ladder -> the widest gamma of each run."""
    planner: Any = policy.start(setting(len(kept), same_text))
    left, widest = [10 * runs] * len(kept), []
    for row in range(len(kept)):
        planner.admit(row)
    for _ in range(runs):
        planner.begin(left, waiting)
        asked = [planner.choose(row) for row in range(len(kept))]
        widest.append(max(asked))
        planner.timed(
            Timing(
                max(asked) + 1, LADDER.runs[max(asked)], LADDER.drafts[max(asked)] if max(asked) else None, max(asked)
            )
        )
        for row, (gamma, keeps) in enumerate(zip(asked, kept, strict=True)):
            planner.learn(row, gamma, gamma if keeps else 0, gamma if keeps else min(gamma, 1))
            left[row] -= 1 + (gamma if keeps else 0)
        planner.ended(left)
    return widest


def test_a_batch_does_not_wait_for_guesses_that_its_slowest_row_does_not_keep() -> None:
    """A run of two tokens a row gained something for two rows of four, and the batch took 8 % longer than without."""
    assert sum(map(bool, live(Auto(), [True, False], 100)[20:])) <= 8
    assert sum(map(bool, live(Auto(), [True, True], 100)[20:])) > 60


def test_where_others_wait_for_a_slot_the_mean_counts() -> None:
    assert sum(map(bool, live(Auto(), [True, False], 100, waiting=True)[20:])) > 60


def test_rows_decide_for_themselves_where_the_text_depends_on_gamma() -> None:
    """Catches a row that learns from a neighbour's draws, which may be of its own noise."""
    planner: Any = Auto().start(setting(2, same_text=False))
    for _ in range(60):
        planner.begin([50, 50], False)
        asked = [planner.choose(0), planner.choose(1)]
        planner.timed(Timing(max(asked) + 1, LADDER.runs[max(asked)]))
        planner.learn(0, asked[0], asked[0], asked[0])
        planner.learn(1, asked[1], 0, min(asked[1], 1))
    assert planner.choose(0) > 0 == planner.choose(1)


def test_nothing_is_tried_in_vain_by_the_next_call() -> None:
    """A text of 32 tokens began with guesses that earlier texts had shown to be worth nothing."""
    policy = Auto()
    first, second = live(policy, [False], 32), live(policy, [False], 32)
    assert first[0] > 0 and sum(map(bool, first[:8])) >= 2
    assert sum(map(bool, second)) <= 3 < sum(map(bool, first))
    assert sum(map(bool, live(policy, [True], 300)[200:])) > 60, "a drafter that is good again is found out"


def test_the_last_token_of_a_text_is_not_guessed_for() -> None:
    """No guess of a run can be used in a row that ends with the next token."""
    planner: Any = Auto().start(setting(2))
    planner.begin([1, 3], True)
    assert planner.choose(0) == 0 and planner.choose(1) <= 2


def test_the_planner_of_given_costs_starts_afresh() -> None:
    policy = Auto(0.3)
    live(policy, [False], 32)
    planner: Any = policy.start(setting(1))
    planner.begin([30], False)
    assert planner.choose(0) > 0


@pytest.mark.parametrize("policy", [Auto(), Auto(0.1)])
def test_auto_is_told_of_the_rows(policy: Auto) -> None:
    assert isinstance(policy.start(setting(2)), JointPlanner)


# --- the numbers behind it ---------------------------------------------------------------------------


def test_rates_of_one_row_are_what_they_are_alone() -> None:
    outlook = ([0.7, 0.6, 0.5, 0.4], [0.9, 0.8, 0.7, 0.6])
    alone = LADDER.rates(*outlook)
    assert LADDER.joint_rates([outlook]) == alone
    assert LADDER.joint_rates([outlook], [5]) == pytest.approx(alone)
    assert LADDER.joint_rates([outlook, outlook], [5, 5])[0] == 1.0


def test_rates_of_rows_are_those_of_the_last_to_end() -> None:
    """By hand: one guess, made surely by one row and kept always, never made by the other."""
    good, none = ([1.0], [1.0]), ([1.0], [0.0])
    ladder = Ladder((1.0, 1.2), (0.0, 0.0))
    assert ladder.joint_rates([good, none]) == pytest.approx([1, 1.5 / 1.2])
    assert ladder.joint_rates([good, none], [10, 10]) == pytest.approx([1, 1 / 1.2])
    assert ladder.joint_rates([good, none], [10, 5]) == pytest.approx([1, 2 / 1.2]), "the other ends at the same time"
    both = ([1.0], [0.5])
    assert ladder.joint_rates([both, both])[1] == pytest.approx(1.5 / (1 + 0.75 * 0.2)), "a run is wide if any row is"


def test_a_row_alone_does_not_widen_the_run_of_all() -> None:
    """A copy of eight tokens in one row of four made a run of all of them four times as dear."""
    four = Prices(LADDER, [1.0] * 4, [], weights=[0.25] * 4)
    assert four.together([0.5] * 4, [4, 0, 0, 0], [0, 0, 0, 0]) == 0
    assert four.together([0.5] * 4, [4, 4, 4, 4], [0, 0, 0, 0]) == 2
    waited_for = replace(four, weights=[1.0, 0, 0, 0])
    assert waited_for.together([0.5] * 4, [4, 0, 0, 0], [0, 0, 0, 0]) == 2
    assert waited_for.together([0.5] * 4, [0, 4, 4, 4], [0, 0, 0, 0]) == 0


def test_a_dear_try_is_rare() -> None:
    assert (
        Pause.worth(0.01).length == SHORTEST
        and Pause.worth(0.9).length == 90
        and Pause.worth(9.0).length == 900
        and Pause.worth(90).length == 1024
    )


def test_one_that_may_decline_is_asked_less_and_less() -> None:
    asking, asked = Asking(), []
    for run in range(200):
        if asking.open:
            asked.append(run)
        asking.learn(asking.open, False)
    assert asked[:PATIENCE] == list(range(PATIENCE))
    gaps = [b - a for a, b in zip(asked[PATIENCE - 1 :], asked[PATIENCE:], strict=False)]
    assert gaps == sorted(gaps) and gaps[0] == SHORTEST + 1 and gaps[-1] == 4 * SHORTEST + 1


@pytest.mark.parametrize(("waking", "guesses"), [(0.5, True), (20.0, False)])
def test_a_drafter_is_not_woken_for_less_than_that_takes(waking: float, guesses: bool) -> None:
    """On a slow host waking takes longer than was supposed, and short texts did not make up for it."""
    policy = Auto()
    given = Setting(2, LIMIT, Nothing(), "shape", splits=False, joint=True)
    teacher = policy.start(given)
    for gamma in (0, 0, 0, 0, 4, 4, 4):
        teacher.timed(Timing(gamma + 1, 1.0 + 0.1 * gamma))
    for _ in range(3):
        teacher.timed(Timing(5, 1.4 + waking, waking=True))
    planner = policy.start(given)
    assert isinstance(planner, JointPlanner)
    planner.begin([16, 16], waiting=False)
    assert (planner.choose(0) > 0) == guesses


@pytest.mark.parametrize(("reading", "guesses"), [(0.1, True), (4.0, False)])
def test_texts_are_not_read_for_less_than_that_takes(reading: float, guesses: bool) -> None:
    """On a CPU: sixteen tokens of four rows do not pay for four prompts that take long to read, once read they do."""
    policy = Auto()
    given = Setting(4, LIMIT, Nothing(), "shape", joint=True)
    teacher = policy.start(given)
    for gamma in (0, 0, 0, 0, 4, 4, 4):
        teacher.timed(Timing(gamma + 1, 1.0 + 0.05 * gamma, 0.05 * gamma if gamma else None, gamma))
    for _ in range(3):
        teacher.timed(Timing(5, 1.2, 0.2 + 4 * reading, 4, read=frozenset(range(4))))
    planner: Any = policy.start(given)
    for row in range(4):
        planner.admit(row)
    planner.begin([16] * 4, waiting=False)
    assert (planner.choose(0) > 0) == guesses
    planner.ended([15] * 4)
    planner.timed(Timing(5, 1.2, 0.2 + 4 * reading, 4, read=frozenset(range(4))))
    planner.begin([15] * 4, waiting=False)
    assert planner.choose(0) > 0


@pytest.mark.parametrize("splits", [True, False], ids=["cpu", "gpu"])
def test_rows_that_decide_for_themselves_know_nothing_of_each_other(splits: bool) -> None:
    """On a GPU a row that kept every guess was asked for none beside others that kept none: rates were one for all."""

    def chosen(neighbours: int) -> list[int]:
        given = replace(setting(1 + neighbours, same_text=False), splits=splits)
        planner: Any = Auto(0.05).start(given)
        found = []
        for row in range(1 + neighbours):
            planner.admit(row)
        for _ in range(40):
            planner.begin([90] * (1 + neighbours), waiting=False)
            asked = [planner.choose(row) for row in range(1 + neighbours)]
            found.append(asked[-1])
            for row, gamma in enumerate(asked):
                last = row == neighbours
                planner.learn(row, gamma, gamma if last else 0, gamma if last else min(gamma, 1))
            planner.ended([90] * (1 + neighbours))
        return found

    alone = chosen(0)
    assert alone[-1] > 0 and chosen(1) == chosen(7) == alone


def test_while_nobody_guesses_rates_are_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the rates of a few rows took their time in every run on a CPU."""
    policy = Auto()
    live(policy, [False] * 4, 100)
    planner: Any = policy.start(setting(4))
    looks, real = [], Ladder.joint_rates
    monkeypatch.setattr(Ladder, "joint_rates", lambda *given: looks.append(1) or real(*given))
    for row in range(4):
        planner.admit(row)
    for left in range(90, 26, -1):
        planner.begin([left] * 4, waiting=False)
        assert not any(planner.choose(row) for row in range(4))
        planner.ended([left - 1] * 4)
    assert 4 <= len(looks) <= 16


def vain_run(planner: Any, left: int) -> int:
    """A run of four rows with so many tokens to come, of whose guesses none is kept -> how many were asked for."""
    planner.begin([left] * 4, waiting=False)
    gamma = max(planner.choose(row) for row in range(4))
    for row in range(4):
        planner.learn(row, gamma, 0, min(gamma, 1))
    planner.ended([left - 1] * 4)
    return gamma


def tries_on_a_gpu(waking: float) -> int:
    """Of guesses that are never kept, in 3,000 runs of a batch; ``waking``: plain runs that the first of them takes."""
    policy, found = Auto(), 0
    planner: Any = policy.start(replace(setting(4), splits=False))
    for row in range(4):
        planner.admit(row)
    rested = 0
    for left in range(3000, 0, -1):
        gamma = vain_run(planner, left)
        found += gamma > 0
        wakes = gamma > 0 and rested >= 8
        rested = 0 if gamma else rested + 1
        planner.timed(Timing(gamma + 1, 1.0 + 0.3 * gamma + waking * wakes, None, gamma, 4, waking=wakes))
    return found


def test_a_try_on_a_gpu_is_as_rare_as_it_is_dear() -> None:
    """Waking a head took six runs, every 256 runs: two and a half per cent for nothing."""
    assert 0 < tries_on_a_gpu(20.0) < tries_on_a_gpu(0.0)


def tries(reading: float) -> int:
    """Of guesses that are never kept, in 200 calls with four prompts; ``reading``: plain runs for each of them."""
    policy, found = Auto(), 0
    for _ in range(200):
        planner: Any = policy.start(setting(4))
        for row in range(4):
            planner.admit(row)
        unread = frozenset(range(4))
        for left in range(16, 0, -1):
            gamma = vain_run(planner, left)
            found += gamma > 0
            read, unread = (unread, frozenset[int]()) if gamma else (frozenset[int](), unread)
            drafting = 0.3 * gamma + reading * len(read)
            planner.timed(Timing(gamma + 1, 1.0 + 0.1 * gamma, drafting if gamma else None, gamma, 4, read=read))
    return found


def test_a_pause_is_as_long_as_its_try_is_dear() -> None:
    """Catches texts of many rows that are read every few calls for a guess that gains nothing."""
    assert tries(0.0) > tries(8.0) + 4


def test_a_drafter_of_which_nothing_is_expected_reads_no_texts() -> None:
    """It is asked because a copy may begin anywhere: guesses that are not copied cost what reading does."""
    policy = Auto()
    given = Setting(4, LIMIT, Mixture(Copying(), ModelDrafter(ToyModel(8))), "shape", joint=True)
    teacher: Any = policy.start(given)
    for gamma in (0, 0, 0, 0, 4, 4, 4):
        teacher.timed(Timing(gamma + 1, 1.0 + 0.5 * gamma, 0.5 * gamma if gamma else None, gamma))
    for _ in range(3):
        teacher.timed(Timing(5, 3.0, 2.0 + 4 * 3.0, 4, read=frozenset(range(4))))
    planner: Any = policy.start(given)
    for row in range(4):
        planner.admit(row)
    planner.begin([16] * 4, waiting=False)
    assert planner.choose(0) == LIMIT
    steps = planner.prices.ladder
    assert steps.more(1) > 12 > 2 > steps.more(2)
