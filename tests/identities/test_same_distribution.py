"""The test of distributions itself: assert_same_distribution fails as rarely as it says and finds what it says."""

from __future__ import annotations

import pytest
import scipy.stats
import torch
from torch import Tensor

from outrider.testing import assert_same_distribution, counts_of
from outrider.testing.distribution import chi_square_quantile

DISTRIBUTION = torch.tensor([0.4, 0.3, 0.2, 0.05, 0.03, 0.02], dtype=torch.float64)


def multinomial(p: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    drawn = torch.multinomial(p, samples, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=len(p))


@pytest.mark.parametrize("freedom", [1, 2, 7, 63, 511])
@pytest.mark.parametrize("tail", [1e-3, 1e-9, 1e-12])
def test_quantiles(freedom: int, tail: float) -> None:
    """Catches a threshold in the wrong place: compared with scipy's inverse survival function."""
    assert chi_square_quantile(freedom, tail) == pytest.approx(scipy.stats.chi2.isf(tail, freedom), rel=1e-6)


def failures(p: Tensor, rate: float, trials: int, samples: int) -> int:
    generator = torch.Generator().manual_seed(1)
    failed = 0
    for _ in range(trials):
        try:
            assert_same_distribution(multinomial(p, samples, generator), DISTRIBUTION, false_fail_rate=rate)
        except AssertionError:
            failed += 1
    return failed


def test_false_failures_are_as_rare_as_stated() -> None:
    """Catches an overconfident threshold: at a stated rate of 5 %, 600 right samplers fail about 30 times."""
    assert 0 < failures(DISTRIBUTION, 0.05, 600, 5000) < scipy.stats.binom.isf(1e-9, 600, 0.06)


def test_the_stated_distance_is_found() -> None:
    """Catches a power that is only claimed: a distribution at exactly that distance is found practically always."""
    detects = assert_same_distribution((DISTRIBUTION * 5000).round(), DISTRIBUTION).detects
    off = DISTRIBUTION + torch.tensor([-1, 1, 0, 0, 0, 0], dtype=torch.float64) * detects
    assert failures(off, 1e-9, 300, 5000) >= 298


def test_too_small_a_sample_is_an_error() -> None:
    """Catches a test that passes because it cannot fail."""
    with pytest.raises(ValueError, match="100 samples over .* draw about"):
        assert_same_distribution((DISTRIBUTION * 100).round(), DISTRIBUTION, detects=0.02)


def test_impossible_outcomes_fail_at_once() -> None:
    """Catches a single token that a filter should have cut."""
    with pytest.raises(AssertionError, match="1 of 1001 samples have probability zero"):
        assert_same_distribution(torch.tensor([500, 500, 1]), torch.tensor([0.5, 0.5, 0.0]))


def test_what_is_pooled_counts_against_the_power() -> None:
    """Catches a stated distance that ignores what could hide among pooled rare outcomes."""
    rare = torch.tensor([0.5, 0.48, *[0.001] * 20], dtype=torch.float64)
    assert assert_same_distribution((rare * 10_000).round(), rare).detects > 0.02


@pytest.mark.parametrize(
    ("counts", "expected", "says"),
    [
        (torch.ones(3), torch.ones(2) / 2, "one shape"),
        (torch.ones(2), torch.ones(2), "sum to 1"),
        (torch.zeros(2), torch.ones(2) / 2, "at least one sample"),
    ],
)
def test_bad_arguments(counts: Tensor, expected: Tensor, says: str) -> None:
    """Catches arguments mixed up in silence."""
    with pytest.raises(ValueError, match=says):
        assert_same_distribution(counts, expected)


def test_counts() -> None:
    """Catches joint outcomes counted in the wrong cell."""
    counts = counts_of(torch.tensor([[0, 1], [2, 1], [0, 1]]), 3)
    assert counts[0, 1] == 2
    assert counts[2, 1] == 1
    assert counts.sum() == 3
