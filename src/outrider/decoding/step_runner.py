"""The sessions of one batch and how its steps are run: one by one, or captured once as CUDA graphs and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.algorithm import speculative_step
from outrider.core.noise import Noise, Silence
from outrider.core.protocols import Drafter, LanguageModel, Shape, Verifier
from outrider.core.sampling import Sampling, SamplingByRow
from outrider.core.timing import TimedTarget
from outrider.decoding.capture.checks import NotCapturable
from outrider.decoding.capture.graphs import StepGraphs
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.decoding.step_result import PendingStep, table
from outrider.errors import OutriderError
from outrider.runtime import timer
from outrider.trace import Stopwatch


@dataclass(frozen=True)
class Rule:
    """How tokens are chosen and guesses judged."""

    verifier: Verifier
    sampling: Sampling
    logprobs: int | None = None  # likeliest tokens to report beside each chosen one; None: no log-probabilities

    @property
    def capturable(self) -> bool:
        """Processors are called row by row, with lengths read from the device; logits of a replay are overwritten."""
        shared = self.verifier.capturable and not isinstance(self.sampling, SamplingByRow)
        return not self.sampling.processors and shared and self.logprobs is None

    @property
    def key(self) -> tuple[str, str]:
        return self.verifier.name, str(self.sampling)


class StepRunner:
    """Row slots on one target session and one draft session.

    ``graphs`` asks for replayed steps: the eager ones are the reference and give the same bits.
    """

    def __init__(
        self,
        models: tuple[LanguageModel, Drafter],
        slots: int,
        shape: Shape,
        graphs: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> None:
        target, drafter = models
        self.name = drafter.name
        self.target = target.start(slots, shape)
        # As many tokens at once as a run may commit: no drafter is told more.
        self.drafter = SafeDrafter(lambda: drafter.start(slots, shape, self.target), slots, self.target, shape.width)
        self.seeds = torch.zeros(slots, dtype=torch.int64, device=target.device)
        self.shape, self.graphs, self.note = shape, graphs, note
        self.spoiled = False  # a model's bad numbers are in its memory: not for another batch
        self._captured: StepGraphs | None = None
        self.drafter.captured = graphs
        if graphs:
            self.drafter.abilities.declare_only_drafter()

    def launch(self, rule: Rule, gamma: int, watch: Stopwatch | None = None) -> PendingStep:
        """Start a step; its result is read from the pending, at once or while the next step runs."""
        noise = Silence(self.seeds) if rule.sampling.greedy else Noise(self.seeds)
        gamma = gamma if self.drafter.session is not None else 0
        replays, wakes, captures = self.graphs and rule.capturable, gamma > 0 and self.drafter.resting, self.captures
        settled = self._settle() if wakes and replays else 0.0
        self.drafter.prepare(gamma)
        watch = watch or Stopwatch(_Anything())
        began = self._mark() if replays else None
        replayed = self._replay(rule, noise, gamma) if replays else None
        if replayed is not None:
            watch.lap("target")
            pending = PendingStep(replayed, began)
        else:
            timed = TimedTarget(self.target, watch)
            pending = PendingStep(speculative_step(timed, self.drafter, rule.verifier, rule.sampling, noise, gamma))
            pending.logits = timed.logits if rule.logprobs is not None else None
            watch.lap("accept")
        if replays:
            captured = self.captures != captures
            pending.usual = replayed is not None and not captured and not wakes
            pending.woke, pending.settled = wakes and not captured, settled
        return pending

    def _settle(self) -> float:
        """Wait for what the device has still to do, as waking a drafter would -> the seconds that took."""
        if self.target.device.type != "cuda":
            return 0.0
        began = timer.now()
        torch.cuda.current_stream(self.target.device).synchronize()
        return timer.now() - began

    def _mark(self) -> torch.cuda.Event | None:
        """Where the device is now: steps are timed by its own clock, since the host may be behind or ahead."""
        if self.target.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    @property
    def ahead(self) -> bool:
        """Whether a step can be launched before the last one's events are dealt with: eager launches take too long."""
        return self.graphs and self.target.device.type != "cpu"

    @property
    def captures(self) -> int:
        """CUDA graphs captured so far."""
        return 0 if self._captured is None else self._captured.made

    def idle(self) -> None:
        """Release every row, so that the next batch finds the slots empty; captured graphs stay."""
        for slot in range(self.seeds.shape[0]):
            self.target.release(slot)
            self.drafter.release(slot)
        self.drafter.price(None)

    def _replay(self, rule: Rule, noise: Noise, gamma: int) -> Tensor | None:
        name = (self.seeds.shape[0], gamma, rule.key, self.drafter.resting)
        return self.replayed(name, lambda: self.step_table(rule, noise, gamma), gamma > 0)

    def replayed(self, name: Hashable, step: Callable[[], Tensor], drafting: bool = True) -> Tensor | None:
        """A step's table, or None where it must run eagerly: for once while catching up, for good if it cannot.

        ``drafting`` False: only the target's session runs.
        """
        if self.drafter.session is not None and not self.drafter.abilities.capturable:
            self._give_up(f"drafter {self.name!r} does not say that it can be captured")
            return None
        if self._captured is None:
            self._captured = StepGraphs(self.target, self.drafter, note=self.note)
        if not self._captured.steady(drafting):
            return None
        try:
            return self._captured.run(name, step, drafting)
        except OutriderError:
            raise
        except NotCapturable as reason:
            self._give_up(str(reason))
        except Exception as error:  # the eager step has its own way with a drafter or model that raises
            self._give_up(f"{type(error).__name__}: {error}")
        return None

    def _give_up(self, reason: str) -> None:
        self.graphs, self._captured = False, None
        warnings.warn(
            f"steps cannot be replayed as CUDA graphs and run one by one, with the same text: {reason}", stacklevel=5
        )

    def step_table(self, rule: Rule, noise: Noise, gamma: int) -> Tensor:
        """One eager step -> the table of its outcome, on the device: what a CUDA graph captures."""
        with self.drafter.raising():
            step = speculative_step(self.target, self.drafter, rule.verifier, rule.sampling, noise, gamma)
        return table(step)


class _Anything(dict[str, float]):
    """Takes times for any phase and forgets them with itself."""

    def __missing__(self, phase: str) -> float:
        return 0.0
