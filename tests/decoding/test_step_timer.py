"""What planners are told that steps take: the host's own work for a step counts, what others do in between does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from helpers import wrapped
from outrider.core import host_sync
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_result import PendingStep
from outrider.decoding.step_runner import StepRunner
from outrider.decoding.step_timer import Launched, StepTimer
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying
from outrider.models.toy import ToyModel, ToySession
from outrider.planning.policies import Fixed, Rehearsal
from outrider.planning.step_clock import Timing
from outrider.runtime import timer
from outrider.trace import Stopwatch, Trace


class Time:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time() -> Iterator[Time]:
    clock = Time()
    with timer.using(clock):
        yield clock


def told(time: Time, ahead: bool, device: float | None, **of_step: Any) -> Timing | None:
    """Of a step that took 2 seconds to launch, was waited for for 4, and dealt with in 3."""
    step = PendingStep(torch.zeros(1, 7))
    for name, value in of_step.items():
        setattr(step, name, value)
    model = ToyModel()
    shape = Shape(64, 9)
    drafter = SafeDrafter(lambda: Copying().start(1, shape, model.start(1, shape)), 1, model.start(1, shape))
    stepping = StepTimer(drafter, Stopwatch(Trace().seconds), splits=False, narrow=True)
    ready = time.now + 100.0 + 4.0

    def waits() -> None:  # also when it is read, and then no more
        time.passes(max(0.0, ready - time.now))
        step.device_seconds = device

    step.wait = waits  # type: ignore[method-assign]
    launched = Launched(step, [None], [1], ahead, time.now, 0.0, launching=2.0)
    time.passes(100.0)  # the caller of a stream has the turn
    host = stepping.read(launched)
    time.passes(3.0)
    return stepping.timing(launched, host.guesses)


@pytest.mark.parametrize(("device", "seconds"), [(6.5, 6.5), (4.5, 5.0)])
def test_the_slower_of_host_and_device_sets_the_pace(device: float, seconds: float, time: Time) -> None:
    """The planner went by the device alone: on a slow host, guesses that cost the host time seemed to pay."""
    assert told(time, True, device) == Timing(2, seconds)


@pytest.mark.parametrize("device", [6.5, None])
def test_steps_that_do_not_overlap_take_both(device: float | None, time: Time) -> None:
    assert told(time, False, device) == Timing(2, 9.0)


def test_what_happens_once_is_not_told(time: Time) -> None:
    assert told(time, True, 6.5, usual=False) is None


def test_a_drafter_that_is_woken_is_told_apart(time: Time) -> None:
    """All of it, but for what the device had still to do before."""
    assert told(time, True, 6.5, usual=False, woke=True, settled=1.5) == Timing(2, 7.5, waking=True)


class Told:
    """A policy that notes what steps are said to take."""

    def __init__(self, gamma: int) -> None:
        self.gamma, self.timings = gamma, list[Timing]()

    def start(self, setting: Any) -> Any:
        listening = self

        class Listening(Fixed):
            def timed(self, step: Timing) -> None:
                listening.timings.append(step)

        return Listening(self.gamma)


@pytest.mark.parametrize("gamma", [0, 2])
def test_rows_count_and_callers_do_not(gamma: int, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a clock that stops when a step is read: dealing with each row's tokens takes time, with guesses more. And
    one that goes on while the caller has the turn, or while another prompt is prefilled."""
    score, admit = ToySession.score, ToySession.admit

    def scored(self: ToySession, tail: torch.Tensor) -> torch.Tensor:
        time.passes(1.0)
        return score(self, tail)

    def admitted(self: ToySession, *given: Any) -> None:
        time.passes(1000.0)
        admit(self, *given)

    def criterion(ids: Any, scores: Any) -> bool:
        time.passes(0.25)  # for every token of every row
        return False

    monkeypatch.setattr(ToySession, "score", scored)
    monkeypatch.setattr(ToySession, "admit", admitted)
    policy, trace = Told(gamma), Trace()
    decoder = Decoder(ToyModel(4), Copying(shortest=1), gumbel_coupling, Sampling(), policy, slots=2)
    requests = [Request((1, 2, 3), Stopping(tokens, criteria=(criterion,))) for tokens in (4, 20, 20)]
    for _ in decoder.stream(requests, trace):
        time.passes(100.0)
    taken = [step.seconds for step in policy.timings]
    assert len(taken) == trace.runs
    assert sum(taken) == trace.runs + 0.25 * sum(record.emitted for record in trace.records)


def test_a_rehearsal_overlaps_as_who_listens() -> None:
    """Steps of a rehearsal that were read one by one would take longer than the same steps in a call."""

    class Clocked(Fixed):
        timed_by_clock = True

    class Starts:
        def start(self, setting: Any) -> Any:
            return Clocked(0)

    assert Rehearsal((1,), Starts()).start(None).timed_by_clock  # type: ignore[arg-type, attr-defined]
    assert not Rehearsal((1,), Fixed(1)).start(None).timed_by_clock  # type: ignore[arg-type, attr-defined]
    assert not Rehearsal((1,)).start(None).timed_by_clock  # type: ignore[arg-type, attr-defined]


def test_a_step_for_which_a_drafter_is_woken_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that was captured does not, nor one that it had not rested before."""
    monkeypatch.setattr(host_sync, "on_cpu", False)
    monkeypatch.setattr(StepRunner, "ahead", property(lambda runner: runner.graphs))
    found: list[tuple[int, bool, bool]] = []
    launch = StepRunner.launch

    def noted(self: StepRunner, rule: Any, gamma: int, watch: Stopwatch | None = None) -> PendingStep:
        pending = launch(self, rule, gamma, watch)
        found.append((gamma, pending.usual, pending.woke))
        return pending

    monkeypatch.setattr(StepRunner, "launch", noted)
    pool, drafter, model = SessionPool(graphs=True), Copying(shortest=1), wrapped("llama")
    for _ in range(2):
        decoder = Decoder(model, drafter, gumbel_coupling, Sampling(), Rehearsal((3, 3)), slots=1, pool=pool)
        list(decoder.stream([Request((5, 6, 7, 5), Stopping(8))], Trace()))
    guessing = [(usual, woke) for gamma, usual, woke in found if gamma]
    assert guessing == [(False, False), (True, False), (False, True), (True, False)]
