"""The closed forms: against the papers' printed digits, and as identities that hold for any input."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from outrider import theory
from outrider.errors import BadOption
from outrider.theory import Costs

chances = st.floats(0, 1)
below_one = st.floats(0, 0.99)
prices = st.floats(0, 2)
guesses = st.integers(0, 40)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """p and q over the same few outcomes, with zeros, ties and point masses."""
    size = draw(st.integers(1, 6))
    weights = st.lists(
        st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.0, 3.0]) | st.floats(1e-3, 5), min_size=size, max_size=size
    )
    both = [draw(weights.filter(any)) for _ in "pq"]
    p, q = ([w / math.fsum(weights) for w in weights] for weights in both)
    return p, q


# --- the papers' tables ------------------------------------------------------------------------------

TABLE_1 = [  # alpha, gamma, operations, speed
    (0.6, 2, "1.53", "1.96"),
    (0.7, 3, "1.58", "2.53"),
    (0.8, 2, "1.23", "2.44"),
    (0.8, 5, "1.63", "3.69"),
    (0.9, 2, "1.11", "2.71"),
    (0.9, 10, "1.60", "6.86"),
]

TABLE_4 = [  # gamma, alpha, c, expected improvement
    (7, 0.75, 0.02, "3.2"),
    (7, 0.80, 0.04, "3.3"),
    (7, 0.82, 0.11, "2.5"),
    (7, 0.62, 0.02, "2.3"),
    (5, 0.65, 0.02, "2.4"),
    (5, 0.73, 0.04, "2.6"),
    (3, 0.74, 0.11, "2.0"),
    (5, 0.53, 0.02, "1.9"),
    (3, 0.55, 0.04, "1.8"),
]

TABLE_4_FROM_UNROUNDED = [  # the printed digits follow from an alpha and a c that only round to the printed ones
    (5, 0.68, 0.04, "2.4"),
    (3, 0.71, 0.11, "2.0"),
    (3, 0.56, 0.11, "1.6"),
]


@pytest.mark.parametrize(("alpha", "gamma", "work", "speed"), TABLE_1)
def test_table_1(alpha: float, gamma: int, work: str, speed: str) -> None:
    assert f"{theory.operations(alpha, gamma):.2f}" == work
    assert f"{theory.speedup(alpha, gamma, 0.0):.2f}" == speed
    assert f"{1 / theory.memory_accesses(alpha, gamma):.2f}" == speed


@pytest.mark.parametrize(("gamma", "alpha", "c", "speed"), TABLE_4)
def test_table_4(gamma: int, alpha: float, c: float, speed: str) -> None:
    assert f"{theory.speedup(alpha, gamma, c):.1f}" == speed


@pytest.mark.parametrize(("gamma", "alpha", "c", "speed"), TABLE_4_FROM_UNROUNDED)
def test_table_4_where_its_own_inputs_were_rounded(gamma: int, alpha: float, c: float, speed: str) -> None:
    """Three rows come out one last digit lower from the printed alpha and c; within their rounding they agree."""
    assert f"{theory.speedup(alpha, gamma, c) + 0.1:.1f}" == speed
    assert theory.speedup(alpha + 0.005, gamma, c - 0.005) >= float(speed) - 0.05


@pytest.mark.parametrize(("alpha", "speed"), [(0.75, "3.3"), (0.8, "3.9"), (0.87, "4.9")])
def test_greedy_lenience_of_appendix_a5(alpha: float, speed: str) -> None:
    """A.5 with c = 0.015 and gamma = 8."""
    assert f"{theory.speedup(alpha, 8, 0.015):.1f}" == speed


def test_bigram_of_section_3_6() -> None:
    """alpha 0.2, gamma 3, free guesses: 1.25 times."""
    assert f"{theory.speedup(0.2, 3, 0.0):.2f}" == "1.25"


def test_what_an_oracle_adds() -> None:
    """Section 3.5: up to about 60 per cent over the best fixed gamma, for the costs the paper met."""
    gains = [
        theory.oracle_speedup(alpha, c) / theory.speedup(alpha, theory.optimal_gamma(alpha, c, 500), c)
        for alpha in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
        for c in (0.02, 0.03, 0.04, 0.11)
    ]
    assert 1.55 < max(gains) < 1.6


# --- how alike two distributions are -----------------------------------------------------------------


@given(pairs())
def test_divergence(pair: tuple[list[float], list[float]]) -> None:
    """Definition 3.2, Lemma 3.3, Theorem 3.5 and Corollary 3.4: one number in four ways."""
    p, q = pair
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    kept = math.fsum(b * min(1.0, a / b) for a, b in zip(p, q, strict=True) if b)  # section 2.3, x drawn from q
    assert math.isclose(
        theory.divergence(p, q), math.fsum(abs(a - m) for a, m in zip(p, middle, strict=True)), abs_tol=1e-12
    )
    assert math.isclose(theory.divergence(p, q), 1 - theory.overlap(p, q), abs_tol=1e-12)
    assert math.isclose(theory.overlap(p, q), kept, abs_tol=1e-12)
    assert theory.divergence(p, q) == theory.divergence(q, p)
    assert theory.divergence(p, p) == 0


@given(pairs())
def test_a_mapping_is_a_sequence_with_names(pair: tuple[list[float], list[float]]) -> None:
    p, q = pair
    named = [{f"outcome {i}": v for i, v in enumerate(values) if v} for values in pair]
    assert math.isclose(theory.overlap(p, q), theory.overlap(*named), abs_tol=1e-12)


@given(pairs(), st.floats(0.01, 1))
def test_lenience(pair: tuple[list[float], list[float]], lenience: float) -> None:
    """A.5: l = 1 is the strict rule, less is more, and the chance is what comparing l q(x) with p(x) gives."""
    p, q = pair
    kept = math.fsum(b * min(1.0, a / (lenience * b)) for a, b in zip(p, q, strict=True) if b)
    assert math.isclose(theory.lenient_overlap(p, q, lenience), kept, abs_tol=1e-12)
    assert theory.lenient_overlap(p, q, 1.0) == theory.overlap(p, q)
    assert theory.overlap(p, q) - 1e-12 <= theory.lenient_overlap(p, q, lenience) <= 1 + 1e-12


@given(pairs())
def test_gumbel_coupling(pair: tuple[list[float], list[float]]) -> None:
    """Between Daliri's bound and the maximal coupling, and equal to the sum over all pairs of tokens."""
    p, q = pair
    both = [(a, b) for a, b in zip(p, q, strict=True) if a and b]
    slow = math.fsum(
        1 / math.fsum(max(y / a, z / b) for y, z in zip(p, q, strict=True))
        for a, b in both
    )  # fmt: skip
    kept = theory.gumbel_overlap(p, q)
    assert math.isclose(kept, slow, abs_tol=1e-9)
    assert theory.gumbel_bound(theory.divergence(p, q)) - 1e-9 <= kept <= theory.overlap(p, q) + 1e-9


def test_alpha_is_a_mean() -> None:
    p, q = [0.5, 0.5], [0.9, 0.1]
    assert math.isclose(theory.alpha_of_overlaps([0.2, 0.6]), 0.4)
    assert math.isclose(theory.alpha_of_distributions([(p, q), (p, p)]), (0.6 + 1) / 2)


# --- tokens, time and work ---------------------------------------------------------------------------


@given(below_one, guesses)
def test_equation_1_is_a_capped_geometric_mean(alpha: float, gamma: int) -> None:
    counted = math.fsum((n + 1) * alpha**n * (1 - alpha) for n in range(gamma)) + (gamma + 1) * alpha**gamma
    closed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert math.isclose(theory.expected_tokens(alpha, gamma), counted, rel_tol=1e-9)
    assert math.isclose(theory.expected_tokens(alpha, gamma), closed, rel_tol=1e-9)


@given(chances, guesses)
def test_limits(alpha: float, gamma: int) -> None:
    """No guess, no hope, full acceptance, endless drafts."""
    assert theory.expected_tokens(alpha, 0) == 1
    assert theory.expected_tokens(0.0, gamma) == 1
    assert theory.expected_tokens(1.0, gamma) == gamma + 1
    assert 1 <= theory.expected_tokens(alpha, gamma) <= min(gamma + 1, theory.oracle_tokens(alpha) * (1 + 1e-12))
    if alpha < 0.9:
        assert math.isclose(theory.expected_tokens(alpha, 1000), theory.oracle_tokens(alpha))
    assert math.isclose(theory.oracle_speedup(alpha, 0.0), theory.oracle_tokens(alpha), rel_tol=1e-9)
    assert theory.oracle_tokens(1.0) == math.inf


@given(st.lists(chances, max_size=8))
def test_a_chance_of_its_own_for_every_guess(alphas: list[float]) -> None:
    """Equation (1) without one alpha: enumerate where the draft ends."""
    gamma = len(alphas)
    ends = [math.prod(alphas[:n]) * (1 - alphas[n] if n < gamma else 1) for n in range(gamma + 1)]
    mean = math.fsum((n + 1) * chance for n, chance in enumerate(ends))
    assert math.isclose(theory.expected_tokens(alphas, gamma), mean, rel_tol=1e-9)
    assert theory.expected_tokens(alphas, gamma) == theory.expected_tokens(lambda i: alphas[i - 1], gamma)


@given(chances, chances, guesses, prices, prices)
def test_monotone(one: float, other: float, gamma: int, c: float, d: float) -> None:
    """More acceptance and cheaper guesses never hurt; a guess never reduces tokens nor saves operations."""
    low, high = sorted([one, other])
    cheap, dear = sorted([c, d])
    assert theory.speedup(low, gamma, cheap) <= theory.speedup(high, gamma, cheap) * (1 + 1e-12)
    assert theory.speedup(low, gamma, dear) <= theory.speedup(low, gamma, cheap)
    assert theory.operations(high, gamma, c) <= theory.operations(low, gamma, c) * (1 + 1e-12)
    assert theory.operations(one, gamma) >= 1 - 1e-12
    assert theory.expected_tokens(one, gamma) <= theory.expected_tokens(one, gamma + 1)


@given(st.floats(0, 1), prices, guesses)
def test_corollary_3_9(alpha: float, c: float, gamma: int) -> None:
    """alpha > c is exactly when some gamma gains, and then at least (1 + alpha) / (1 + c)."""
    assume(abs(alpha - c) > 1e-9)
    best = theory.optimal_gamma(alpha, c, 60)
    assert (best > 0) == (alpha > c)
    if alpha > c:
        assert theory.speedup(alpha, best, c) >= theory.least_speedup(alpha, c) * (1 - 1e-12)
    assert theory.speedup(alpha, gamma, c) <= theory.oracle_speedup(alpha, c) * (1 + 1e-9)


@given(below_one, st.floats(0.001, 1), st.integers(0, 60))
def test_optimal_gamma_is_the_best_of_all(alpha: float, c: float, most: int) -> None:
    """Against the printed formula of Theorem 3.8, gamma by gamma."""
    by_formula = [(1 - alpha ** (g + 1)) / ((1 - alpha) * (g * c + 1)) for g in range(most + 1)]
    best = theory.optimal_gamma(alpha, c, most)
    assert by_formula[best] >= max(by_formula) * (1 - 1e-9)
    assert best == 0 or by_formula[best] > by_formula[best - 1]  # the smallest of equals


@given(
    st.lists(st.floats(0, 1), min_size=12, max_size=12),
    st.lists(st.floats(0.5, 3), min_size=13, max_size=13),
    st.lists(st.floats(0, 0.5), min_size=12, max_size=12),
    st.floats(0, 0.5),
)
def test_optimal_gamma_with_measured_costs(
    alphas: list[float], widths: list[float], draft: list[float], asking: float
) -> None:
    """A cost that jumps with the width and guesses of different prices: nothing unimodal to climb."""
    costs = Costs(widths, draft, asking)

    def speed(gamma: int) -> float:
        tokens = 1 + math.fsum(math.prod(alphas[:i]) for i in range(1, gamma + 1))
        return tokens / (widths[gamma] + math.fsum(draft[:gamma]) + (asking if gamma else 0))

    best = theory.optimal_gamma(alphas, costs, 12)
    assert speed(best) >= max(map(speed, range(13))) * (1 - 1e-9)
    assert math.isclose(theory.speedup(alphas, 5, costs), speed(5), rel_tol=1e-9)


@given(chances, prices, guesses)
def test_flat_costs_are_the_papers(alpha: float, c: float, gamma: int) -> None:
    table = Costs(dict.fromkeys(range(1, gamma + 2), 1.0), lambda i: c)
    assert math.isclose(theory.speedup(alpha, gamma, c), theory.speedup(alpha, gamma, table), rel_tol=1e-12)


def test_a_wider_run_that_costs_more_shortens_the_draft() -> None:
    """The reason for measuring: with a run of width k costing 1 + (k - 1) / 4 the paper's optimum loses."""
    steep = Costs(target=lambda width: 1 + (width - 1) / 4, draft=0.02)
    assert theory.optimal_gamma(0.75, 0.02, 16) == 9
    assert theory.optimal_gamma(0.75, steep, 16) == 3
    assert theory.speedup(0.75, 9, steep) < 1.2 < 1.5 < theory.speedup(0.75, 3, steep)


def test_interpolated_costs() -> None:
    cost = theory.interpolated({1: 1.0, 5: 2.0, 9: 2.0})
    assert [cost(w) for w in (1, 3, 5, 7, 9)] == [1.0, 1.5, 2.0, 2.0, 2.0]
    assert theory.interpolated({4: 1.5})(4) == 1.5
    with pytest.raises(BadOption, match="width 10, only for 1 to 9"):
        cost(10)


def test_forecast_gathers_the_formulas() -> None:
    seen = theory.forecast(0.75, 7, 0.02, 0.01)
    assert (seen.gamma, f"{seen.tokens:.3f}", f"{seen.speedup:.3f}") == (7, "3.600", "3.157")
    assert math.isclose(seen.operations, 8.07 / seen.tokens) and math.isclose(seen.memory, 1 / seen.tokens)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.expected_tokens(1.2, 3), "alpha must be between 0 and 1, got 1.2"),
        (lambda: theory.expected_tokens(math.nan, 3), "alpha must be a number of at least 0, got nan"),
        (lambda: theory.expected_tokens(0.5, -1), "gamma must be at least 0, got -1"),
        (lambda: theory.expected_tokens([0.5], 2), "alpha has no value for number 2"),
        (lambda: theory.speedup(0.5, 1, -0.1), "draft must be a number of at least 0, got -0.1"),
        (lambda: theory.speedup(0.5, 1, Costs(0.0)), "target cost must be above 0, got 0.0 at width 2"),
        (lambda: theory.speedup(0.5, 3, Costs({1: 1.0, 2: 1.0})), "target has no value for number 4"),
        (lambda: theory.operations(0.5, 1, math.inf), "draft_operations must be a number of at least 0, got inf"),
        (lambda: theory.overlap([0.5, 0.5], [1.0]), "p and q must be two mappings, or of one length, got 2 and 1"),
        (lambda: theory.overlap([0.5, 0.6], [1.0, 0.0]), "p must sum to 1, it sums to 1.1"),
        (lambda: theory.overlap([1.0, 0.0], [1.5, -0.5]), "q must hold probabilities of at least 0, got -0.5"),
        (lambda: theory.overlap([1.0, 0.0], [math.nan, 1.0]), "q must hold probabilities of at least 0, got nan"),
        (lambda: theory.overlap([], []), "p must sum to 1"),
        (lambda: theory.lenient_overlap([1.0], [1.0], 0.0), "lenience must be above 0 and at most 1, got 0.0"),
        (lambda: theory.gumbel_bound(1.5), "divergence must be between 0 and 1, got 1.5"),
        (lambda: theory.alpha_of_overlaps([]), "overlaps are empty"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(BadOption, match=re.escape(message)):
        call()  # type: ignore[operator]
