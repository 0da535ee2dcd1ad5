"""What a step takes where one follows another: what a planner weighs guesses against plain steps by.

Counted are the device's time and the host's own work for the step: launching it and dealing with its result. Not
counted is what lies between steps: the caller of a stream, waiting for requests, prefill. What happens once (a CUDA
graph capture, a step that runs eagerly to catch up) is not told at all, and the first step of a drafter that had rested
is told apart. Plain and speculative steps are timed alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.decoding.safe_drafter import SafeDrafter
from outrider.decoding.step_result import HostStep, PendingStep
from outrider.decoding.stopping import Row
from outrider.planning.step_clock import Timing
from outrider.runtime import timer
from outrider.trace import Stopwatch


@dataclass
class Launched:
    """A step that is under way: whose rows are in it, what was asked for, and what the host has spent on it so far."""

    step: PendingStep
    rows: list[tuple[int, Row] | None]
    asked: list[int]  # guesses, by slot
    ahead: bool  # the next step is launched before this one is read: the device works while the host does
    began: float
    drafted: float  # seconds of drafts before it
    launching: float  # seconds of the host until it was launched
    waited: float = 0.0  # seconds that the host then had nothing to do but wait for it
    ready: float = 0.0  # when its result was there


class StepTimer:
    """Times the steps of one batch."""

    def __init__(self, drafter: SafeDrafter, watch: Stopwatch, splits: bool, narrow: bool) -> None:
        """``splits``: drafts are timed apart from runs; ``narrow``: a run is as wide as its guesses ask for."""
        self.drafter, self.watch, self.splits, self.narrow = drafter, watch, splits, narrow

    def read(self, launched: Launched) -> HostStep:
        """The step's result, once it is there."""
        began = timer.now()
        launched.step.wait()
        launched.ready = timer.now()
        launched.waited = launched.ready - began
        host = launched.step.read()
        if not self.splits:  # what a replay did inside cannot be told apart: all of it is 'target'
            self.watch.lap("target")
        return host

    def timing(self, launched: Launched, guesses: int) -> Timing | None:
        """To be asked when the step's result was dealt with; None: it says nothing of other steps."""
        step, dealing = launched.step, timer.now() - launched.ready
        host = launched.launching - step.settled + dealing
        if step.woke:
            return Timing(guesses + 1, host + launched.waited, waking=True)
        if not step.usual:
            return None
        device = step.device_seconds
        # The device runs the next step while the host deals with this one: the slower of the two sets the pace.
        seconds = max(device, host) if launched.ahead and device is not None else host + launched.waited
        return self._split(launched, guesses, seconds) if self.splits else Timing(guesses + 1, seconds)

    def _split(self, launched: Launched, guesses: int, seconds: float) -> Timing:
        width, rows = guesses + 1 if self.narrow else 1, sum(map(bool, launched.rows))
        drafting = self.watch.seconds["draft"] - launched.drafted
        if max(launched.asked) == 0:
            return Timing(width, seconds - drafting, rows=rows)
        spent = guesses if self.drafter.spent is None else self.drafter.spent
        return Timing(width, seconds - drafting, drafting, spent, rows, read=self.drafter.texts_read)
