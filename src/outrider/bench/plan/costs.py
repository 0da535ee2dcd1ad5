"""What steps of a target take by width and batch: the decoding loop itself, with guesses that take no time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from outrider.bench.plan.forecast import TargetCosts
from outrider.bench.plan.settings import PlanSettings
from outrider.core.protocols import Drafter
from outrider.drafters import Nothing
from outrider.drafters.known_text import KnownText
from outrider.llm import LLM
from outrider.output import Output
from outrider.trace import PHASES, ratio

ALONE, MANY = 16, 8
"""Tokens of each timed text, for one request and for several."""

EVERY = 8
"""Gammas up to this are all timed for one request at a time: costs have steps. Beyond, and for several, some are."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a mean step of a call whose rows all ran from its first step to its last."""

    draft: float  # until the target's run begins; in a plain step what the loop itself does before it
    rest: float

    @staticmethod
    def of(output: Output) -> StepTime:
        draft, steps = output.trace.seconds["draft"], max(1, output.trace.runs)
        return StepTime(draft / steps, (decoding_seconds(output) - draft) / steps)

    @property
    def whole(self) -> float:
        return self.draft + self.rest


def with_slots(llm: LLM, drafter: Drafter, batch: int) -> LLM:
    """The same target and shapes with another drafter and this many rows."""
    return LLM(llm.target, drafter, width=llm.width, slots=batch, exact=llm.exact, graphs=llm.graphs)


def measured_costs(
    llm: LLM, prompts: Sequence[Sequence[int]], batch: int, settings: PlanSettings, advance: Callable[[str], None]
) -> TargetCosts:
    """Plain steps and steps of every width in turn; a width's cost is the median of its turns' ratios to plain.

    Guesses are of one token that is hardly ever right, so that each step gives one token, as a plain one does.
    """
    tokens = ALONE if batch == 1 else MANY
    longest = max(map(len, prompts)) + tokens + 4 * llm.width
    wide = with_slots(llm, KnownText(torch.zeros((batch, longest), dtype=torch.int64), spoiled=0.0), batch)
    engines = {0: with_slots(llm, Nothing(), batch)} | dict.fromkeys(timed_gammas(settings.most, batch), wide)
    options = {**settings.options, "max_new_tokens": tokens, "eos": ()}
    plain: list[float] = []
    ratios: dict[int, list[float]] = {gamma: [] for gamma in engines}
    for turn in range(settings.turns + 1):  # the first warms up
        given = [list(prompts[(turn * batch + row) % len(prompts)]) for row in range(batch)]
        numbers = list(engines)[:: 1 if turn % 2 else -1]
        taken = {gamma: StepTime.of(engines[gamma].generate(given, gamma=gamma, **options)[0]) for gamma in numbers}
        if turn > 0:
            plain.append(taken[0].whole)
            for gamma, step in taken.items():
                ratios[gamma].append(ratio(step.rest + taken[0].draft, taken[0].whole))
        advance(f"cost of a run, {batch} at a time")
    widths = {gamma + 1: median(found) for gamma, found in ratios.items()}
    return TargetCosts(batch, median(plain), dict(sorted(widths.items())), settings.turns)


def timed_gammas(most: int, batch: int) -> list[int]:
    """Numbers of guesses whose runs are timed; the others lie on straight lines between them."""
    every = range(1, min(most, EVERY if batch == 1 else 2) + 1)
    doubled = (number for number in (4, 8, 16, 32, 64, 128) if number < most)
    return sorted({*every, *doubled, most})


def decoding_seconds(output: Output) -> float:
    """Of the whole call that an output came from, without prefill."""
    return sum(output.trace.seconds[phase] for phase in PHASES)
