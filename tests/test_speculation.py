"""Two functions at once: the outcome follows f's distribution, by identity and by sampling; wrong rules are caught."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import outrider
from executors import AtOnce
from outrider import speculation
from outrider.testing import assert_same_distribution

P = {"a": 0.42, "b": 0.3, "c": 0.0, "d": 0.2, "e": 0.08}
APPROXIMATIONS = {
    "near": {"a": 0.5, "b": 0.2, "d": 0.2, "e": 0.1},
    "far": {"a": 0.05, "b": 0.05, "c": 0.5, "d": 0.1, "e": 0.3},
    "sharp": {"a": 0.7, "b": 0.2, "d": 0.05, "e": 0.05},
    "itself": P,
    "one outcome": {"b": 1.0},
    "elsewhere": {"x": 0.7, "y": 0.3},
}


# --- the distribution -----------------------------------------------------------------------------------------


def check_distribution(q: dict[str, float], guesses: int, samples: int = 25_000, detects: float = 0.045) -> float:
    """Through the product's own path; fails once in 1e9 if all is well. The share of kept guesses."""
    random, places = Random(7), {x: i for i, x in enumerate([*P, "x", "y"])}
    counts, kept = [0] * len(places), 0
    for _ in range(samples):
        seen = outrider.speculate(lambda: P, lambda: q, str.upper, AtOnce(), guesses=guesses, seed=random)
        assert seen.value == seen.outcome.upper()
        counts[places[seen.outcome]] += 1
        kept += seen.kept
    assert_same_distribution(torch.tensor(counts), torch.tensor([P.get(x, 0.0) for x in places]), detects=detects)
    return kept / samples


@pytest.mark.parametrize("guesses", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["near", "far", "sharp"])
def test_distribution(name: str, guesses: int) -> None:
    kept = check_distribution(APPROXIMATIONS[name], guesses)
    assert (kept > 0) == (guesses > 0)


@pytest.mark.parametrize("name", ["itself", "one outcome", "elsewhere"])
def test_distribution_with_odd_approximations(name: str) -> None:
    """Always kept, a point mass, never kept."""
    kept = check_distribution(APPROXIMATIONS[name], 2, samples=12_000, detects=0.065)
    if name == "elsewhere":
        assert kept == 0


def test_acceptance_is_the_overlap() -> None:
    """Theorem 3.5: one guess is kept with the chance reported as ``overlap``, and as theory.py has it."""
    q, samples = APPROXIMATIONS["near"], 25_000
    seen = outrider.speculate(lambda: P, lambda: q, str.upper, AtOnce(), seed=0)
    assert math.isclose(seen.overlap, 0.42 + 0.2 + 0.2 + 0.08)
    kept = round(check_distribution(q, 1, samples) * samples)
    assert_same_distribution(
        torch.tensor([kept, samples - kept]), torch.tensor([seen.overlap, 1 - seen.overlap]), detects=0.04
    )


distributions = st.dictionaries(
    st.sampled_from("abcde"), st.fractions(Fraction(1, 20), 3, max_denominator=20), min_size=1
)


@given(distributions, distributions, st.integers(0, 4))
def test_the_distribution_as_an_identity(p: dict[str, Any], q: dict[str, Any], guesses: int) -> None:
    """No sampling, no rounding: enumerate every guess and its fate in fractions, and p comes out."""

    def distribution(p: dict[str, Any], q: dict[str, Any], left: int) -> dict[str, Fraction]:
        if left == 0 or not q:
            return p
        total: dict[str, Fraction] = {}
        for x, chance in q.items():
            keep = min(Fraction(1), p.get(x, Fraction(0)) / chance)
            after = distribution(speculation.rest(p, q), speculation.without(q, x), left - 1) if keep < 1 else {}
            for y in {x, *after}:
                share = chance * (keep * (y == x) + (1 - keep) * after.get(y, Fraction(0)))
                total[y] = total.get(y, Fraction(0)) + share
        return {x: w for x, w in total.items() if w}

    p, q = speculation.normalised(p), speculation.normalised(q)
    assert distribution(p, q, guesses) == p


# --- mutants: each must be caught, or the distributions above prove nothing -----------------------------------


def keeping(keep: Callable[..., bool], *, removes: bool = True, lowers: bool = True, fresh: bool = True) -> Any:
    """``decide`` with something wrong in it; with the arguments left alone it is right."""

    def decide(p: dict[str, float], q: dict[str, float], drawn: list[str], random: Random) -> str:
        r = random.random()
        for x in drawn:
            r = random.random() if fresh else r
            if keep(r, p.get(x, 0.0), q[x]):
                return x
            p = speculation.rest(p, q) if lowers or x == drawn[-1] else p
            q = speculation.without(q, x) if removes else q
        return speculation.draw(p, random)

    return decide


def right(r: float, p: float, q: float) -> bool:
    return r * q < p


def likeliest(q: dict[str, float], count: int, random: Random) -> list[str]:
    return sorted(q, key=q.__getitem__, reverse=True)[:count]


MUTANTS: dict[str, tuple[str, Any, int]] = {  # the part replaced, by what, and the guesses it takes to see it
    "every guess is kept": ("decide", keeping(lambda r, p, q: True), 1),
    "every possible guess is kept": ("decide", keeping(lambda r, p, q: p > 0), 1),
    "kept only where p is at least q": ("decide", keeping(lambda r, p, q: p >= q), 1),
    "kept with chance p": ("decide", keeping(lambda r, p, q: r < p), 1),
    "ratio upside down": ("decide", keeping(lambda r, p, q: r * p < q), 1),
    "correction drawn from p": ("rest", lambda p, q: p, 1),
    "correction drawn from |p - q|": (
        "rest", lambda p, q: speculation.normalised({x: abs(w - q.get(x, 0)) for x, w in p.items()}), 1,
    ),
    "one uniform for all guesses": ("decide", keeping(right, fresh=False), 2),
    "second guess judged by p itself": ("decide", keeping(right, lowers=False), 2),
    "second guess judged by q with the first in it": ("decide", keeping(right, removes=False), 2),
    "likeliest guess, judged as if drawn": ("draw_several", likeliest, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part, wrong, guesses = MUTANTS[name]
    monkeypatch.setattr(speculation, part, wrong)
    with pytest.raises(AssertionError, match="not the expected distribution|probability zero"):
        check_distribution(APPROXIMATIONS["far" if guesses == 1 else "sharp"], guesses, samples=10_000, detects=0.07)


def test_the_mutants_frame_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "decide", keeping(right))
    check_distribution(APPROXIMATIONS["far"], 2)
