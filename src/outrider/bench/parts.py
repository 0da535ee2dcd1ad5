"""What the parts of a step take, each timed by itself: a replayed step cannot be looked into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.bench.gpu import Lane, Setting
from outrider.bench.timing import timed
from outrider.core.noise import Noise
from outrider.core.protocols import Drafter
from outrider.decoding.capture.graphs import StepGraphs
from outrider.decoding.step_runner import Rule
from outrider.drafters import Nothing


@dataclass(frozen=True)
class Parts:
    """Milliseconds, medians; replayed where steps are."""

    plain_ms: float  # a step without guesses
    speculative_ms: float  # a step with gamma guesses
    guess_ms: float  # one guess

    @property
    def c(self) -> float:
        """The papers' c: the time of a guess over that of a plain target run of the same width."""
        return self.guess_ms / self.plain_ms


@torch.no_grad()
def parts(setting: Setting, drafter: Drafter, rule: Rule, graphs: bool = True) -> Parts:
    """Of one row standing at the setting's context; the setting's own draft is of no account."""
    gamma = setting.gamma
    plain = Lane(setting, Nothing(), setting.shape(), graphs=graphs)
    step = _median(setting, plain, lambda: plain.stepper.launch(rule, 0))
    lane = Lane(setting, drafter, setting.shape(), graphs=graphs)
    speculative = _median(setting, lane, lambda: lane.stepper.launch(rule, gamma))
    session, target = lane.stepper.drafter.session, lane.stepper.target
    if session is None:
        raise RuntimeError(lane.stepper.drafter.error)
    noise = rule.verifier.noise_for_draft(Noise(lane.stepper.seeds), target.context.positions(gamma + 1))

    def guess() -> Tensor:
        return session.propose(gamma, rule.sampling, noise, target.context.positions(gamma + 1)).tokens

    captured = StepGraphs(target, lane.stepper.drafter)
    replayed = lane.stepper.graphs and rule.capturable  # as the steps were
    drafting = _median(setting, lane, (lambda: captured.run("guess", guess)) if replayed else guess)
    return Parts(step, speculative, drafting / gamma)


def cost(setting: Setting, drafter: Drafter, rule: Rule, graphs: bool) -> float:
    """c alone, with fewer repeats."""
    return parts(replace(setting, repeats=3, inner=5), drafter, rule, graphs).c


def _median(setting: Setting, lane: Lane, work: Callable[[], object]) -> float:
    times = timed(work, setting.device, setting.repeats, setting.inner, lambda: lane.stand_at(setting.context))
    return times["median"]
