"""Do these samples follow that distribution? A chi-square test that states its error rate and its power.

The likelihood-ratio form (the G-test) is used: its tail stays close to the chi-square's for rare outcomes,
which matters when the false-failure rate is 1e-9 and Pearson's form would cry wolf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_RARE = 20.0
"""Outcomes expected fewer times than this are pooled into one."""

_MISS_SIGMA = 3.1
"""The stated distance is missed with probability at most 1e-3: one-sided normal quantile."""


@dataclass(frozen=True)
class SameDistribution:
    """What a passed test says: it would have failed for any distribution at total variation ``detects`` or more."""

    samples: int
    outcomes: int  # after pooling the rare ones
    statistic: float
    threshold: float
    detects: float  # smallest total-variation distance found with probability 99.9 %


def assert_same_distribution(
    counts: Tensor, expected: Tensor, *, false_fail_rate: float = 1e-9, detects: float | None = None, what: str = ""
) -> SameDistribution:
    """Fail unless ``counts`` look like draws from the probabilities ``expected`` (same shape, any shape).

    A right sampler fails with probability ``false_fail_rate``. ``detects`` is the total-variation distance
    the test must be able to find; a sample too small for that is a ValueError, not a pass.
    """
    name = f"{what}: " if what else ""
    tested = same_distribution(counts, expected, false_fail_rate=false_fail_rate)
    seen, p = counts.flatten().to(torch.float64), expected.flatten().to(torch.float64)
    total = float(seen.sum())
    impossible = (p == 0) & (seen > 0)
    assert not bool(impossible.any()), (
        f"{name}{int(seen[impossible].sum())} of {total:.0f} samples have probability zero in what is expected, "
        f"first at outcome {int(impossible.nonzero()[0])}: something is drawn from an unfiltered distribution"
    )
    if detects is not None and tested.detects > detects:
        raise ValueError(
            f"{name}{total:.0f} samples over {tested.outcomes} outcomes detect a total variation of "
            f"{tested.detects:.4f}, not {detects}; draw about {math.ceil(total * (tested.detects / detects) ** 2)}"
        )
    deviation = (seen / total - p).abs()
    assert tested.statistic <= tested.threshold, (
        f"{name}not the expected distribution: statistic {tested.statistic:.1f} where {tested.threshold:.1f} is "
        f"exceeded once in {1 / false_fail_rate:.0e} runs; observed total variation {float(deviation.sum() / 2):.4f} "
        f"over {total:.0f} samples, largest deviation at outcome {int(deviation.argmax())}"
    )
    return tested


def same_distribution(counts: Tensor, expected: Tensor, *, false_fail_rate: float = 1e-9) -> SameDistribution:
    """The test without a verdict: its statistic (infinite for an impossible outcome), threshold and power."""
    seen, p = counts.flatten().to(torch.float64), expected.flatten().to(torch.float64)
    _check_arguments(counts, expected, seen, p, false_fail_rate)
    total = float(seen.sum())
    impossible = bool(((p == 0) & (seen > 0)).any())
    seen, p, pooled = _pool(seen, p, total)
    freedom = max(1, len(p) - 1)
    threshold = chi_square_quantile(freedom, false_fail_rate)
    power = _detectable(threshold, freedom, total) + pooled
    present = seen > 0
    statistic = float(2 * (seen[present] * (seen[present] / (total * p[present])).log()).sum())
    return SameDistribution(int(total), len(p), math.inf if impossible else statistic, threshold, power)


def samples_for(expected: Tensor, detects: float, *, false_fail_rate: float = 1e-9) -> int:
    """How many draws from the probabilities ``expected`` find a total variation of ``detects``."""
    p = expected.flatten().to(torch.float64)

    def enough(samples: int) -> bool:
        return same_distribution(p * samples, expected, false_fail_rate=false_fail_rate).detects <= detects

    samples = 1
    while not enough(samples):
        samples *= 2
    low = samples // 2
    while samples - low > 1:
        middle = (low + samples) // 2
        low, samples = (low, middle) if enough(middle) else (middle, samples)
    return samples


def chi_square_tail(freedom: int, statistic: float) -> float:
    """P(chi-square of ``freedom`` > statistic): the p-value."""
    if math.isinf(statistic):
        return 0.0
    half = torch.tensor([max(1, freedom) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def chi_square_quantile(freedom: int, tail: float) -> float:
    """x with P(chi-square of ``freedom`` > x) = tail, by bisection on the incomplete gamma function."""
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    low, high = 0.0, freedom + 40 * math.sqrt(2 * freedom) - 10 * math.log(tail)
    for _ in range(200):
        middle = (low + high) / 2
        above = float(torch.special.gammaincc(half, torch.tensor(middle / 2, dtype=torch.float64)))
        low, high = (middle, high) if above > tail else (low, middle)
    return high


def _detectable(threshold: float, freedom: int, total: float) -> float:
    """A total variation of d shifts the statistic by 2 n KL >= 4 n d^2 (Pinsker); solve for 99.9 % power."""
    excess, z = threshold - freedom, _MISS_SIGMA
    shift = excess + 2 * z * z + z * math.sqrt(4 * excess + 4 * z * z + 2 * freedom)
    return math.sqrt(shift / (4 * total))


def _pool(seen: Tensor, p: Tensor, total: float) -> tuple[Tensor, Tensor, float]:
    """Rare outcomes as one, last; the most probability that could hide inside it is returned too."""
    seen, p = seen[p > 0], p[p > 0]
    rare = p * total < _RARE
    if int(rare.sum()) < 2:
        return seen, p, 0.0
    mass = p[rare].sum()
    merged = torch.cat([seen[~rare], seen[rare].sum()[None]]), torch.cat([p[~rare], mass[None]])
    return *merged, float(mass)


def _check_arguments(counts: Tensor, expected: Tensor, seen: Tensor, p: Tensor, rate: float) -> None:
    if counts.shape != expected.shape:
        raise ValueError(f"counts {tuple(counts.shape)} and expected {tuple(expected.shape)} must have one shape")
    if not 0 < rate < 1:
        raise ValueError(f"false_fail_rate must be between 0 and 1, got {rate}")
    if float(seen.sum()) <= 0 or bool((seen < 0).any()):
        raise ValueError("counts must be how often each outcome was seen, with at least one sample")
    if bool((p < 0).any()) or abs(float(p.sum()) - 1) > 1e-5:
        raise ValueError(f"expected must be probabilities that sum to 1, they sum to {float(p.sum())}")
