"""Times the parts of a step one by one: inside a replayed CUDA graph they cannot be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.bench.gpu import StandingRows, StepSetting
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
def parts(setting: StepSetting, drafter: Drafter, rule: Rule, graphs: bool = True) -> Parts:
    """Of one row standing at the setting's context; the setting's own draft is of no account."""
    gamma = setting.gamma
    plain = StandingRows(setting, Nothing(), setting.shape(), graphs=graphs)
    step = _median(setting, plain, lambda: plain.runner.launch(rule, 0))
    rows_at = StandingRows(setting, drafter, setting.shape(), graphs=graphs)
    speculative = _median(setting, rows_at, lambda: rows_at.runner.launch(rule, gamma))
    session, target = rows_at.runner.drafter.session, rows_at.runner.target
    if session is None:
        raise RuntimeError(rows_at.runner.drafter.error)
    noise = rule.verifier.noise_for_draft(Noise(rows_at.runner.seeds), target.context.positions(gamma + 1))

    def guess() -> Tensor:
        return session.propose(gamma, rule.sampling, noise, target.context.positions(gamma + 1)).tokens

    captured = StepGraphs(target, rows_at.runner.drafter)
    replayed = rows_at.runner.graphs and rule.capturable  # as the steps were
    drafting = _median(setting, rows_at, (lambda: captured.run("guess", guess)) if replayed else guess)
    return Parts(step, speculative, drafting / gamma)


def cost(setting: StepSetting, drafter: Drafter, rule: Rule, graphs: bool) -> float:
    """c alone, with fewer repeats."""
    return parts(replace(setting, repeats=3, inner=5), drafter, rule, graphs).c


def _median(setting: StepSetting, rows_at: StandingRows, work: Callable[[], object]) -> float:
    times = timed(work, setting.device, setting.repeats, setting.inner, lambda: rows_at.stand_at(setting.context))
    return times["median"]
