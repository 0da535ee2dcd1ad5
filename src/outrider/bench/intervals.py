"""Ratios of sums over prompts, and how much they depend on which prompts were asked."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from outrider.trace import ratio

Interval = tuple[float, float]


def total_ratio(parts: Sequence[Interval]) -> float:
    return ratio(math.fsum(p[0] for p in parts), math.fsum(p[1] for p in parts))


def bootstrap(over: Sequence[Interval], under: Sequence[Interval] | None = None, rounds: int = 1000) -> Interval:
    """95 % interval of a ratio of sums over prompts, or of the quotient of two such ratios.

    Prompts are drawn again with replacement: how much the figure depends on which prompts were asked. With fewer
    than two prompts nothing is known about that: NaN.
    """
    count = len(over)
    if count < 2:
        return (math.nan, math.nan)
    chance, found = random.Random(0), []
    for _ in range(rounds):
        drawn = [chance.randrange(count) for _ in range(count)]
        value = total_ratio([over[i] for i in drawn])
        if under is not None:
            value = ratio(value, total_ratio([under[i] for i in drawn]))
        found.append(value)
    known = sorted(v for v in found if not math.isnan(v))
    if not known:
        return (math.nan, math.nan)
    return known[int(0.025 * len(known))], known[int(0.975 * len(known))]
