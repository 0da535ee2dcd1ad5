"""What speculative decoding can gain: the closed forms of the papers. Math only, no torch.

Numbers in docstrings (equation 1, Theorem 3.8 ...) are those of Leviathan et al. 2023. alpha is the chance that
a guess is kept, gamma the guesses per target run, c the cost of a guess in units of a plain target step.
"""

from outrider.theory.gains import (
    ByNumber,
    Costs,
    Forecast,
    expected_tokens,
    forecast,
    interpolated,
    least_speedup,
    memory_accesses,
    operations,
    optimal_gamma,
    oracle_speedup,
    oracle_tokens,
    speedup,
)
from outrider.theory.hierarchies import Hierarchy, HierarchyForecast
from outrider.theory.overlaps import (
    Distribution,
    alpha_of_distributions,
    alpha_of_overlaps,
    divergence,
    gumbel_bound,
    gumbel_overlap,
    lenient_overlap,
    overlap,
    rejection_overlap,
)

__all__ = [
    "ByNumber",
    "Costs",
    "Distribution",
    "Forecast",
    "Hierarchy",
    "HierarchyForecast",
    "alpha_of_distributions",
    "alpha_of_overlaps",
    "divergence",
    "expected_tokens",
    "forecast",
    "gumbel_bound",
    "gumbel_overlap",
    "interpolated",
    "least_speedup",
    "lenient_overlap",
    "memory_accesses",
    "operations",
    "optimal_gamma",
    "oracle_speedup",
    "oracle_tokens",
    "overlap",
    "rejection_overlap",
    "speedup",
]
