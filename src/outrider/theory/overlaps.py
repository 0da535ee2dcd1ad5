"""How alike two distributions are, and so how often a guess from one is kept by the other: acceptance from p and q."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

from outrider.errors import require

Distribution = Sequence[float] | Mapping[Hashable, float]
"""Probabilities of 0, 1, 2 ... in order, or by outcome; an outcome left out of a mapping has none."""

_SUM_SLACK = 1e-4  # float32 probabilities over a large vocabulary sum to 1 only about so well


def overlap(p: Distribution, q: Distribution) -> float:
    """beta of Theorem 3.5: the chance that a guess from q is kept, sum over x of min(p(x), q(x))."""
    return math.fsum(min(a, b) for a, b in _paired(p, q))


def rejection_overlap(p: Distribution, q: Distribution) -> float:
    """A.2: the chance that one round of rejection sampling keeps a guess from q, the least of q(x) / p(x): never more
    than ``overlap``."""
    return min(1.0, *(b / a for a, b in _paired(p, q) if a > 0))


def divergence(p: Distribution, q: Distribution) -> float:
    """D_LK of Definition 3.2, sum over x of |p(x) - q(x)| / 2: the total variation, 1 - overlap (Lemma 3.3)."""
    return math.fsum(abs(a - b) for a, b in _paired(p, q)) / 2


def alpha_of_overlaps(overlaps: Iterable[float]) -> float:
    """Corollary 3.6, alpha = E(min(p, q)): the mean of measured overlaps."""
    values = list(overlaps)
    require(len(values) > 0, "overlaps are empty; give at least one")
    for value in values:
        require(-_SUM_SLACK <= value <= 1 + _SUM_SLACK, f"overlaps must be between 0 and 1, got {value}")
    return min(1.0, max(0.0, math.fsum(values) / len(values)))


def alpha_of_distributions(pairs: Iterable[tuple[Distribution, Distribution]]) -> float:
    """Corollary 3.6 from the distributions themselves: pairs (p, q), one for each position."""
    return alpha_of_overlaps(overlap(p, q) for p, q in pairs)


def lenient_overlap(p: Distribution, q: Distribution, lenience: float) -> float:
    """Appendix A.5: with lenience l a guess is kept with chance sum over x of min(p(x) / l, q(x))."""
    require(0 < lenience <= 1, f"lenience must be above 0 and at most 1, got {lenience}")
    return math.fsum(min(a / lenience, b) for a, b in _paired(p, q))


def gumbel_overlap(p: Distribution, q: Distribution) -> float:
    """The chance that one exponential race has the same winner under p and under q (Gumbel coupling).

    Token x wins both with chance 1 / (sum over y of max(p(y) / p(x), q(y) / q(x))) (Daliri et al. 2024). Sorted
    by p(y) / q(y) the maximum is p's on one side of x and q's on the other, so two running sums do.
    """
    ranked = sorted(_paired(p, q), key=lambda ab: ab[0] / ab[1] if ab[1] else math.inf)
    above, below, shared = math.fsum(a for a, _ in ranked), 0.0, []
    for a, b in ranked:
        if a and b:
            shared.append(1 / (above / a + below / b))
        above, below = max(0.0, above - a), below + b
    return math.fsum(shared)


def gumbel_bound(divergence: float) -> float:
    """What Gumbel coupling keeps at least: (1 - D) / (1 + D) for total variation D (Daliri et al. 2024)."""
    require(0 <= divergence <= 1, f"divergence must be between 0 and 1, got {divergence}")
    return (1 - divergence) / (1 + divergence)


def _paired(p: Distribution, q: Distribution) -> list[tuple[float, float]]:
    """p and q outcome by outcome."""
    if isinstance(p, Mapping) and isinstance(q, Mapping):
        pairs = [(p.get(x, 0.0), q.get(x, 0.0)) for x in {**p, **q}]
    else:
        alike = not isinstance(p, Mapping) and not isinstance(q, Mapping) and len(p) == len(q)
        require(alike, f"p and q must be two mappings, or of one length, got {len(p)} and {len(q)} values")
        pairs = list(zip(p, q, strict=True))  # type: ignore[arg-type]
    for i, name in enumerate("pq"):
        values = [pair[i] for pair in pairs]
        for value in values:
            require(value >= 0, f"{name} must hold probabilities of at least 0, got {value}")
        total = math.fsum(values)
        require(abs(total - 1) <= _SUM_SLACK, f"{name} must sum to 1, it sums to {total}; divide by the sum")
    return pairs
