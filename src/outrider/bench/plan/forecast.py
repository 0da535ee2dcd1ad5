"""From acceptance and prices to a predicted speed-up with its interval, and to one recommendation. Math only."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outrider.bench.plan.acceptance import GuessCounts, together
from outrider.theory import Costs, interpolated, speedup
from outrider.trace import finite

ROUNDS = 400
"""Draws of the bootstrap over prompts."""

WORTHWHILE = 1.02
"""The least predicted speed-up that is recommended: clocks are off by as much."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class TargetCosts:
    """What a step of the target takes by the width of its run, in plain steps of the same batch."""

    batch: int
    plain_seconds: float  # of a plain step: the median of the turns
    widths: Mapping[int, float]  # medians of the turns' ratios to a plain step
    turns: int

    def run(self, shares: Sequence[float]) -> float:
        """A run's mean cost, where so many runs have guess 1, 2, ...: it is as wide as its widest row."""
        cost = interpolated(self.widths)
        wider = (share * (cost(k + 1) - cost(k)) for k, share in enumerate(shares, 1))
        return cost(1) + math.fsum(wider)


@dataclass(frozen=True)
class GuessPrice:
    """What a drafter adds to a step, in plain steps: for being asked, and for each guess."""

    asking: float
    guess: float


@dataclass(frozen=True)
class PricedDraft:
    """All that is known of a drafter in batches of one size."""

    costs: TargetCosts
    price: GuessPrice

    def step_costs(self, counts: GuessCounts) -> Costs:
        """The costs of a mean step. Rows of a batch wait for each other: a guess costs if any of them makes it."""
        anybody = [1 - (1 - share) ** self.costs.batch for share in counts.shares]
        guesses = [self.price.guess * share for share in anybody]
        return Costs({counts.gamma + 1: self.costs.run(anybody)}, guesses, self.price.asking)

    def speedup(self, counts: GuessCounts) -> float:
        """Theorem 3.8 with acceptance by guess number and costs as measured."""
        return speedup(counts.chances, counts.gamma, self.step_costs(counts))

    def interval(self, prompts: Sequence[GuessCounts]) -> Interval:
        """95 %, bootstrap over prompts: how much the prediction depends on which prompts were asked."""
        if len(prompts) < 2:
            return (math.nan, math.nan)
        chance = random.Random(0)
        found = sorted(self.speedup(together(chance.choices(prompts, k=len(prompts)))) for _ in range(ROUNDS))
        return found[int(0.025 * ROUNDS)], found[int(0.975 * ROUNDS)]


@dataclass(frozen=True)
class PredictedCell:
    """A drafter with one gamma in batches of one size."""

    draft: str
    gamma: int
    batch: int
    speedup: float
    interval: Interval

    def to_json(self) -> dict[str, Any]:
        return {name: finite(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Recommendation:
    """What to do with batches of one size: a drafter and its gamma, or "none" and 0."""

    batch: int
    draft: str
    gamma: int
    speedup: float
    interval: Interval

    @property
    def speculates(self) -> bool:
        return self.draft != "none"

    def to_json(self) -> dict[str, Any]:
        return {name: finite(value) for name, value in asdict(self).items()}

    @property
    def words(self) -> str:
        size = f"for {self.batch} request{'s' if self.batch > 1 else ''} at a time"
        if not self.speculates:
            return f"{size} do not speculate: no prediction is above plain decoding with its whole interval"
        low, high = self.interval
        range_ = "" if math.isnan(low) else f" ({low:.2f} to {high:.2f})"
        return f"{size} use --draft {self.draft} --gamma {self.gamma}, predicted {self.speedup:.2f}x{range_} of plain"


def recommended(cells: Sequence[PredictedCell]) -> list[Recommendation]:
    """For each batch the fastest cell, the smallest gamma of equals; none where no gain is certain enough."""
    found = []
    for batch in dict.fromkeys(cell.batch for cell in cells):
        best = max((cell for cell in cells if cell.batch == batch), key=lambda cell: (cell.speedup, -cell.gamma))
        low = best.speedup if math.isnan(best.interval[0]) else best.interval[0]
        if best.speedup >= WORTHWHILE and low > 1:
            found.append(Recommendation(batch, best.draft, best.gamma, best.speedup, best.interval))
        else:
            found.append(Recommendation(batch, "none", 0, 1.0, (1.0, 1.0)))
    return found


def sentence(recommendations: Sequence[Recommendation]) -> str:
    """All of them in one sentence."""
    if not recommendations:
        return "Nothing can be recommended: no prompt was finished."
    text = "; ".join(one.words for one in recommendations) + "."
    return text[0].upper() + text[1:]


def fitted(observed: Sequence[tuple[float, float, float]]) -> GuessPrice:
    """The price that explains (steps asked, guesses, what they took in plain steps) best; never below nothing.

    Least squares for two unknowns. Where one would be negative it is 0, and the other explains what it can alone.
    """
    aa, ab, bb = (math.fsum(x * y for x, y in pairs) for pairs in _products(observed))
    at, bt = (math.fsum(row[k] * row[2] for row in observed) for k in (0, 1))
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        asking, guess = (at * bb - bt * ab) / determinant, (bt * aa - at * ab) / determinant
        if asking >= 0 and guess >= 0:
            return GuessPrice(asking, guess)
    alone = (GuessPrice(max(0.0, at / aa) if aa else 0.0, 0.0), GuessPrice(0.0, max(0.0, bt / bb) if bb else 0.0))
    return min(alone, key=lambda price: _misfit(price, observed))


def _products(observed: Sequence[tuple[float, float, float]]) -> tuple[list[tuple[float, float]], ...]:
    steps, guesses = [row[0] for row in observed], [row[1] for row in observed]
    pairs = ((steps, steps), (steps, guesses), (guesses, guesses))
    return tuple(list(zip(a, b, strict=True)) for a, b in pairs)


def _misfit(price: GuessPrice, observed: Sequence[tuple[float, float, float]]) -> float:
    return math.fsum((price.asking * steps + price.guess * guesses - took) ** 2 for steps, guesses, took in observed)
