"""The clock: what drafts and runs take, from what is declared to what is seen."""

from __future__ import annotations

import threading

import pytest

from outrider.planning import step_clock as clock_module
from outrider.planning.step_clock import Clock, Timing
from outrider.theory import Costs

RUNS = [9.0, 10.0, 11.0, 14.0, 17.0, 20.0, 23.0, 27.0, 30.0]  # ms by width
GUESS, ASKING = 2.0, 0.5


def taught(clock: Clock, widths: list[int], times: int = 3) -> Clock:
    clock.add(Timing(9, 500.0, 90.0, 8))  # the first warms up and counts for nothing
    for width in widths * times:
        drafting = None if width == 1 else ASKING + GUESS * (width - 1)
        clock.add(Timing(width, RUNS[width - 1], drafting, width - 1))
    return clock


def test_runs_and_drafts_are_told_apart() -> None:
    """Catches drafting counted into the runs, and the cost of asking counted as a guess."""
    ladder = taught(Clock(Costs(draft=0.05, asking=0.01), 8), [1, 2, 3, 4, 5, 6, 7, 8, 9]).ladder()
    assert ladder.runs == pytest.approx([ms / 9 for ms in RUNS])
    assert [ladder.drafts[k] - ladder.drafts[k - 1] for k in range(2, 9)] == pytest.approx([GUESS / 9] * 7)


def test_asking_alone_is_timed_where_nothing_was_drafted() -> None:
    clock = taught(Clock(Costs(draft=0.05), 8), [1, 3])
    for _ in range(3):
        clock.add(Timing(1, 9.0, ASKING, 0))
    assert clock.ladder().drafts[0] == pytest.approx(ASKING / 9)
    assert clock.ladder().drafts[1] == pytest.approx((ASKING + GUESS) / 9, rel=0.01)


def test_widths_not_seen_follow_the_declared_shape() -> None:
    """Catches straight lines where the target declares that narrow runs are cheap and wide ones dear."""
    declared = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 2.0, 7: 2.0, 8: 2.0, 9: 2.0}
    stairs = taught(Clock(Costs(declared), 8), [1, 9]).ladder()
    assert stairs.runs == pytest.approx([1.0] * 5 + [30 / 9] * 4)
    straight = taught(Clock(Costs(), 8), [1, 9]).ladder()
    assert straight.runs == pytest.approx([1 + k * 21 / 9 / 8 for k in range(9)])


def test_beyond_what_was_seen_costs_grow_in_proportion() -> None:
    """Catches a drafter that declares a cheap guess and is believed after dear ones were timed."""
    ladder = taught(Clock(Costs(lambda width: 1 + 0.1 * (width - 1), 0.01), 8), [1, 3], times=4).ladder()
    assert ladder.runs[8] == pytest.approx(11 / 9 * 1.8 / 1.2)
    assert ladder.drafts[8] == pytest.approx(4 * (ASKING + 2 * GUESS) / 9)


def test_one_guess_more_than_was_timed_is_tried() -> None:
    """Guesses compiled into one call cost most by the first: in proportion a third seemed too dear and was never
    made, though four were best."""
    ladder = taught(Clock(Costs(draft=0.15, asking=0.05), 8), [1, 3], times=4).ladder()
    assert ladder.drafts[3] == pytest.approx((ASKING + 2 * GUESS) / 9 + 0.15)
    assert ladder.drafts[4] == pytest.approx((ASKING + 2 * GUESS) / 9 * 0.65 / 0.35)


def test_a_number_of_guesses_that_was_slow_once_is_not_avoided() -> None:
    """One step with three guesses that the machine was busy in kept drafts at two for good."""
    clock = taught(Clock(Costs(draft=0.15, asking=0.05), 8), [1, 3], times=4)
    expected = clock.ladder().drafts[3]
    clock.add(Timing(4, 14.0, 40.0, 3))
    assert clock.ladder().drafts[3] == pytest.approx(expected)
    for _ in range(2):
        clock.add(Timing(4, 14.0, 12.0, 3))
    assert clock.ladder().drafts[3] == pytest.approx(12.0 / 9), "seen often enough, it is believed"


def test_guesses_that_were_dear_once_are_tried_again() -> None:
    """A first draft that the machine was busy in made guesses seem dear, and the pause after it was hundreds of runs
    long: longer than all texts of a process."""
    clock = taught(Clock(Costs(draft=0.15, asking=0.05), 8), [1])
    for _ in range(2):  # the first makes the drafter ready
        clock.add(Timing(3, 11.0, 80.0, 2))
    assert clock.ladder().drafts[2] == pytest.approx(1.5 * 0.35)
    for _ in range(3):
        clock.add(Timing(3, 11.0, 80.0, 2))
    assert clock.ladder().drafts[2] > 2, "seen often enough, it is believed"


def test_costs_never_fall_with_width() -> None:
    """Three rows that took longer than four, by chance or by kernel: both are taken for their mean."""
    clock = Clock(Costs(), 4)
    for width, ms in [(1, 1.0), (1, 20.0), (2, 24.0), (3, 30.0), (4, 27.0), (5, 37.0)]:
        clock.add(Timing(width, ms))
    assert clock.ladder().runs == pytest.approx([1.0, 1.2, 28.5 / 20, 28.5 / 20, 37 / 20])


def test_a_clock_promises_no_time_back() -> None:
    """A process stopped now and then measures steps that took no time and steps that took ages: costs stay costs."""
    clock = Clock(Costs(draft=0.05), 8)
    odd = [Timing(1, 1.0), Timing(5, -0.5, 0.6, 4), Timing(5, 0.01, -0.2, 4), Timing(9, 0.0)]
    for step in odd + [Timing(9, s / 10, s / 20, 8) for s in range(1, 60)]:
        clock.add(step)
        ladder = clock.ladder()
        assert all(run > 0 for run in ladder.runs) and all(ladder.more(k) >= 0 for k in range(1, 9))


def test_a_pause_or_warming_up_does_not_decide() -> None:
    """Catches one step that took a minute deciding everything after it."""
    clock = Clock(Costs(draft=0.05), 8)
    for step in range(60):
        width = 1 + step % 2 * 4
        clock.add(Timing(width, 60.0 if step in (0, 30, 31) else 1.0 + (width - 1) * 0.05))
    assert clock.ladder().runs[4] == pytest.approx(1.2)


def test_a_width_that_met_a_pause_is_not_avoided_for_ever() -> None:
    """The story: once, a run of four tokens was timed while the machine stood still for eight seconds. Three guesses
    were never tried again in that process."""
    clock = Clock(Costs(), 8)
    for _ in range(10):
        clock.add(Timing(1, 1.0))
        clock.add(Timing(2, 1.1))
    clock.add(Timing(4, 300.0))
    assert clock.ladder().runs[3] < 4
    for _ in range(256):
        clock.add(Timing(2, 1.1))
    assert clock.ladder().runs[3] == pytest.approx(1.1)


def test_what_has_changed_is_noticed() -> None:
    """Catches a clock that believes for ever what it saw first."""
    clock = Clock(Costs(), 8)
    for seconds in [1.0] * 100 + [2.0] * 20:
        clock.add(Timing(1, 1.0))
        clock.add(Timing(3, seconds))
    assert clock.ladder().runs[2] == pytest.approx(2.0)


def test_plain_runs_are_wanted_where_widths_differ() -> None:
    """A few at first, then one in sixty-four; none where every run is of one kind."""
    narrow, wanted = Clock(Costs(), 8), 0
    for _ in range(200):
        wanted += narrow.wants_plain
        narrow.add(Timing(1 if narrow.wants_plain else 4, 1.0, 0.1, 3))
    assert 4 <= wanted <= 6
    constant = Clock(Costs(), 8)
    for _ in range(200):
        assert not constant.wants_plain
        constant.add(Timing(1, 1.0, 0.1, 3))


def test_the_declared_is_believed_until_something_is_seen() -> None:
    clock = Clock(Costs({1: 1.0, 2: 1.5, 3: 1.7}, 0.25, 0.1), 2)
    assert clock.ladder().runs == (1.0, 1.5, 1.7) and clock.ladder().drafts == pytest.approx((0.1, 0.35, 0.6))


def test_what_asking_takes_says_nothing_of_guesses() -> None:
    """Catches a drafter taken for five times as dear because being asked, in vain, took five times what it declared."""
    clock = Clock(Costs(draft=0.25, asking=0.01), 8)
    for _ in range(4):
        clock.add(Timing(1, 9.0, 0.45, 0))
    assert clock.ladder().drafts[:3] == pytest.approx((0.05, 0.30, 0.55))


def test_the_first_draft_of_all_does_not_count() -> None:
    """Catches a drafter that is left alone for ever because it had to be made ready once."""
    clock = Clock(Costs(draft=0.25), 8)
    clock.add(Timing(1, 9.0))
    clock.add(Timing(1, 9.0))
    clock.add(Timing(3, 11.0, 900.0, 2))
    assert clock.ladder().drafts[2] == pytest.approx(0.5)
    clock.add(Timing(3, 11.0, 4.0, 2))
    assert clock.ladder().drafts[2] == pytest.approx(4.0 / 9)


def test_a_clock_is_read_by_one_thread_while_another_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in two threads share a clock: a table was made of a dictionary that the other one was changing."""
    clock = taught(Clock(Costs(draft=0.05, asking=0.01), 8), [1, 2, 3])
    waits: list[bool] = []
    rising = clock_module.CostCurve.rising

    def interrupted(curve: clock_module.CostCurve) -> list[tuple[int, float]]:
        if not waits:
            waits.append(False)
            other = threading.Thread(target=clock.add, args=(Timing(7, 20.0, 3.0, 6),), daemon=True)
            other.start()
            other.join(0.2)  # only a thread that does not wait is done by then
            waits[0] = other.is_alive()
        return rising(curve)

    monkeypatch.setattr(clock_module.CostCurve, "rising", interrupted)
    clock.ladder()
    assert waits == [True]


def test_what_waking_a_drafter_takes_is_timed() -> None:
    """It was taken for eight plain runs on every host. Other steps are not dearer for it."""
    clock = taught(Clock(Costs(), 8), [1, 3])
    assert clock.waking() == clock_module.WAKING
    before = clock.ladder()
    for _ in range(3):
        clock.add(Timing(3, RUNS[2] + 12 * RUNS[0], waking=True))
    assert clock.waking() == pytest.approx(12)
    assert clock.ladder() == before and clock.steps == 7


@pytest.mark.parametrize(("seconds", "runs"), [(1e6, 3 * clock_module.WAKING), (0.0, 0.0)])
def test_no_waking_is_beyond_belief(seconds: float, runs: float) -> None:
    """One that compiled something on the way must not be the last: a drafter left alone is not timed again."""
    clock = taught(Clock(Costs(), 8), [1, 3])
    clock.add(Timing(3, seconds, waking=True))
    assert clock.waking() == runs


def test_waking_is_declared_until_plain_runs_are_known() -> None:
    clock = Clock(Costs(), 8)
    clock.add(Timing(3, 12.0, waking=True))
    assert clock.waking() == clock_module.WAKING


def test_reading_is_timed_by_row_and_apart_from_guesses() -> None:
    """At thirty-two rows a head read all prompts for guesses that gained nothing, and nobody counted it."""
    clock = taught(Clock(Costs(), 8), [1, 3])
    assert clock.reading(0.5) == 0.5
    before = clock.ladder()
    asked = before.drafts[2] * RUNS[0]
    for _ in range(3):
        clock.add(Timing(3, RUNS[2], asked + 8 * RUNS[0], guesses=2, rows=4, read=frozenset(range(4))))
    assert clock.reading(0.5) == pytest.approx(2)
    assert clock.ladder() == before


def test_a_slow_first_reading_is_got_over() -> None:
    """One that compiled something on the way must not be the last: no more than three times the declared is believed,
    and the quicker ones count."""
    clock = taught(Clock(Costs(), 8), [1, 3])
    found = []
    for drafting in (1e6, 0.0, 1e6, 30.0, 30.0):
        clock.add(Timing(3, RUNS[2], drafting, guesses=2, rows=1, read=frozenset({0})))
        found.append(clock.reading(0.5))
    assert found[:2] == [1.5, 0.0] and found[-1] < 4


def test_more_guesses_than_were_asked_for_are_those_that_were() -> None:
    """A fallback's two drafters may make more together."""
    clock = taught(Clock(Costs(), 2), [1, 3])
    clock.add(Timing(3, RUNS[2], 9.0, guesses=4))
    clock.add(Timing(3, RUNS[2], 9.0, guesses=4, read=frozenset({0})))
    assert clock.reading(0.5) >= 0 and len(clock.ladder().drafts) == 3
