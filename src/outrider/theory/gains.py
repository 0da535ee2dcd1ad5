"""Tokens, time, arithmetic and memory of speculative decoding, by acceptance rate, number of guesses and their cost.

Where the paper assumes one alpha for all guesses, a table or a function of the guess number (from 1) is taken
too; where it assumes that a wide run costs no more than a narrow one, so is a measured cost of every width.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from outrider.errors import require

ByNumber = float | Sequence[float] | Mapping[int, float] | Callable[[int], float]
"""A value for each of 1, 2, 3 ...: one for all, in order from 1, by number, or computed."""


def expected_tokens(alpha: ByNumber, gamma: int) -> float:
    """Equation (1): tokens per target run, (1 - alpha^(gamma+1)) / (1 - alpha).

    It is the sum 1 + alpha + ... + alpha^gamma, which is also right at alpha = 1 and which generalises: with
    alpha_i the chance that guess i is kept if all before it were, term i is alpha_1 * ... * alpha_i.
    """
    return _last(islice(_tokens(alpha), _guesses("gamma", gamma) + 1))


def oracle_tokens(alpha: float) -> float:
    """Section 3.5's bound: 1 / (1 - alpha) tokens per run if gamma were known to be right each time."""
    _check_chance("alpha", alpha)
    return math.inf if alpha == 1 else 1 / (1 - alpha)


@dataclass(frozen=True)
class Costs:
    """What the parts of a step cost, in units of one plain target step.

    ``target`` is the cost of a run by its width (gamma guesses make a run gamma + 1 wide), ``draft`` the cost of
    guess 1, 2, 3 ..., ``asking`` what a drafter takes that is asked and may have none.
    ``Costs(draft=c)`` is the paper's assumption: any width costs one, any guess c.
    """

    target: ByNumber = 1.0
    draft: ByNumber = 0.0
    asking: float = 0.0

    def step(self, gamma: int) -> float:
        """One step: gamma guesses and a target run of width gamma + 1."""
        return (self.drafts(gamma) if gamma else 0.0) + self.run(gamma + 1)

    def drafts(self, guesses: int) -> float:
        """Asking for guesses and being given so many, be it none."""
        _check_cost("asking", self.asking)
        return math.fsum(_value("draft", self.draft, i) for i in range(1, guesses + 1)) + self.asking

    def run(self, width: int) -> float:
        """A target run of this width alone."""
        cost = _value("target", self.target, width)
        require(cost > 0, f"target cost must be above 0, got {cost} at width {width}")
        return cost


def interpolated(measured: Mapping[int, float]) -> Callable[[int], float]:
    """Costs measured at some widths as a function of every width between them, along straight lines."""
    require(len(measured) > 0, "measured costs are empty; give at least one width")
    widths = sorted(measured)

    def cost(width: int) -> float:
        inside = widths[0] <= width <= widths[-1]
        require(inside, f"no cost was measured for width {width}, only for {widths[0]} to {widths[-1]}")
        right = bisect_left(widths, width)
        high = widths[right]
        low = widths[max(0, right - 1)]
        share = (width - low) / (high - low) if high > low else 1.0
        return measured[low] + share * (measured[high] - measured[low])

    return cost


def speedup(alpha: ByNumber, gamma: int, costs: Costs | float) -> float:
    """Theorem 3.8: walltime improvement over plain decoding, (1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1)).

    With measured ``Costs`` it is expected tokens over the cost of a step, whatever the shape of the costs.
    """
    return expected_tokens(alpha, gamma) / _costs(costs).step(gamma)


def least_speedup(alpha: float, c: float) -> float:
    """Corollary 3.9: where alpha > c the best gamma gains at least (1 + alpha) / (1 + c), what one guess gains."""
    _check_chance("alpha", alpha)
    _check_cost("c", c)
    return (1 + alpha) / (1 + c)


def oracle_speedup(alpha: float, c: float) -> float:
    """Section 3.5's bound on varying gamma, as time: an oracle drafts only what is kept, alpha / (1 - alpha) guesses.

    1 / (1 - alpha) tokens for the cost of 1 + c alpha / (1 - alpha): 1 / (1 - alpha + c alpha). Where a guess costs
    more than a target step the oracle drafts nothing, and the bound is 1.
    """
    _check_chance("alpha", alpha)
    _check_cost("c", c)
    cost = 1 - alpha + c * alpha
    return max(1.0, 1 / cost) if cost else math.inf


def optimal_gamma(alpha: ByNumber, costs: Costs | float, most: int) -> int:
    """Section 3.5: the gamma from 0 to ``most`` with the greatest speed-up, the smallest of equals.

    Every gamma is tried: measured costs have steps, so a first decline proves nothing. With free guesses and one
    alpha for all it is ``most`` itself.
    """
    costs, most = _costs(costs), _guesses("most", most)
    best, fastest, drafted = 0, 0.0, 0.0
    for gamma, tokens in enumerate(islice(_tokens(alpha), most + 1)):
        drafted += _value("draft", costs.draft, gamma) if gamma else 0.0
        asking = costs.asking if gamma else 0.0
        speed = tokens / (asking + drafted + costs.run(gamma + 1))
        if speed > fastest * (1 + 1e-12):  # rounding must not prefer a longer draft that gains nothing
            best, fastest = gamma, speed
    return best


def operations(alpha: ByNumber, gamma: int, draft_operations: float = 0.0) -> float:
    """Theorem 3.11: arithmetic operations against plain decoding.

    (1 - alpha)(gamma c^ + gamma + 1) / (1 - alpha^(gamma+1)): the work of a step over its expected tokens.
    ``draft_operations`` is the paper's c^: operations of a guess over operations of a target token.
    """
    _check_cost("draft_operations", draft_operations)
    return (gamma * draft_operations + gamma + 1) / expected_tokens(alpha, gamma)


def memory_accesses(alpha: ByNumber, gamma: int, draft_accesses: float = 0.0) -> float:
    """Section 3.4: reads of the target's weights and cache against plain decoding, one over equation (1).

    ``draft_accesses`` adds the drafter's own: what a guess reads over what a target run reads.
    """
    _check_cost("draft_accesses", draft_accesses)
    return (gamma * draft_accesses + 1) / expected_tokens(alpha, gamma)


@dataclass(frozen=True)
class Forecast:
    """What the formulas say of one gamma."""

    gamma: int
    tokens: float  # per target run: equation (1)
    speedup: float  # Theorem 3.8
    operations: float  # Theorem 3.11
    memory: float  # section 3.4


def forecast(alpha: ByNumber, gamma: int, costs: Costs | float, draft_operations: float = 0.0) -> Forecast:
    """All of the above for one gamma."""
    return Forecast(
        gamma, expected_tokens(alpha, gamma), speedup(alpha, gamma, costs),
        operations(alpha, gamma, draft_operations), memory_accesses(alpha, gamma),
    )  # fmt: skip


def _tokens(alpha: ByNumber) -> Iterator[float]:
    """Equation (1) for gamma = 0, 1, 2 ...: alpha is asked for guess i only when that far is wanted."""
    total = kept = 1.0
    number = 0
    while True:
        yield total
        number += 1
        chance = _value("alpha", alpha, number)
        _check_chance("alpha", chance)
        kept *= chance
        total += kept


def _last(values: Iterable[float]) -> float:
    result = math.nan
    for result in values:  # noqa: B007
        pass
    return result


def _value(name: str, values: ByNumber, number: int) -> float:
    """The value for 1, 2, 3 ... of whatever form was given; never NaN, infinite or negative."""
    if isinstance(values, (int, float)):
        value = float(values)
    elif callable(values):
        value = values(number)
    else:
        known = number in values if isinstance(values, Mapping) else number <= len(values)
        require(known, f"{name} has no value for number {number}, only {len(values)} values; give more or ask for less")
        value = values[number] if isinstance(values, Mapping) else values[number - 1]
    _check_cost(name, value)
    return value


def _costs(costs: Costs | float) -> Costs:
    return costs if isinstance(costs, Costs) else Costs(draft=costs)


def _guesses(name: str, value: int) -> int:
    require(value >= 0, f"{name} must be at least 0, got {value}")
    return value


def _check_cost(name: str, value: float) -> None:
    require(math.isfinite(value) and value >= 0, f"{name} must be a number of at least 0, got {value}")


def _check_chance(name: str, value: float) -> None:
    require(0 <= value <= 1, f"{name} must be between 0 and 1, got {value}")
