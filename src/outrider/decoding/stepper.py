"""The sessions of one batch and how its steps are run: one by one, or recorded once and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.algorithm import speculative_step
from outrider.decoding.guard import Guarded
from outrider.decoding.readback import Ticket, table
from outrider.models.graphs import NotRecordable, Recorder
from outrider.noise import Noise, Silence
from outrider.sampling import Sampling
from outrider.trace import Stopwatch
from outrider.types import Drafter, DraftSession, LanguageModel, Shape, Verifier


@dataclass(frozen=True)
class Rule:
    """How tokens are chosen and guesses judged."""

    verifier: Verifier
    sampling: Sampling

    @property
    def recordable(self) -> bool:
        return not self.sampling.processors  # they are called row by row, with lengths read from the device


class Stepper:
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
        self.target = target.start(slots, shape)
        self.drafter = Guarded(lambda: drafter.start(slots, shape, self.target), slots, self.target)
        self.seeds = torch.zeros(slots, dtype=torch.int64, device=target.device)
        self.shape, self.graphs, self.note = shape, graphs, note
        self._recorder: Recorder | None = None
        if hasattr(self.drafter.session, "sole"):
            self.drafter.session.sole = True  # no other drafter's guesses are verified here

    def launch(self, rule: Rule, gamma: int, watch: Stopwatch | None = None) -> Ticket:
        """Start a step; its result is read from the ticket, at once or while the next step runs."""
        noise = Silence(self.seeds) if rule.sampling.greedy else Noise(self.seeds)
        gamma = gamma if self.drafter.session is not None else 0
        watch = watch or Stopwatch(_Anything())
        if self.graphs and rule.recordable and self.drafter.session is not None:
            replayed = self._replay(rule, noise, gamma, self.drafter.session)
            watch.lap("target")
            if replayed is not None:
                return Ticket(replayed)
        drafter: DraftSession = self.drafter
        step = speculative_step(self.target, drafter, rule.verifier, rule.sampling, noise, gamma, watch)
        return Ticket(table(step))

    def _replay(self, rule: Rule, noise: Noise, gamma: int, drafter: DraftSession) -> Tensor | None:
        """The step's table, or None where it cannot be recorded: said once, then eager for good."""

        if self._recorder is None:
            self._recorder = Recorder(self.target, drafter, note=self.note)
        name = f"{self.seeds.shape[0]} x {gamma} guesses, {rule.verifier.name}, {rule.sampling}"
        try:
            return self._recorder.run(name, lambda: self._step_table(rule, noise, gamma, drafter))
        except NotRecordable as reason:
            self.graphs = False
            warnings.warn(f"this step cannot be replayed as a CUDA graph and runs eagerly: {reason}", stacklevel=4)
            return None

    def _step_table(self, rule: Rule, noise: Noise, gamma: int, drafter: DraftSession) -> Tensor:
        quiet = Stopwatch(_Anything())
        return table(speculative_step(self.target, drafter, rule.verifier, rule.sampling, noise, gamma, quiet))


class _Anything(dict[str, float]):
    """Takes times for any phase and forgets them with itself."""

    def __missing__(self, phase: str) -> float:
        return 0.0
