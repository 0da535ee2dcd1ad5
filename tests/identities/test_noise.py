"""Noise is what it claims: uniform, exponential, independent in every direction, and never a matter of layout.

Chi-square tests with a false-failure rate of 1e-9 and the distance they detect.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.noise import Noise, Silence, counter_of, exponential, open_uniform
from outrider.core.protocols import Draft
from outrider.core.sampling import draw
from outrider.core.verification.block import block_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.testing import assert_same_distribution

BINS = 32


def bins(u: Tensor, count: int = BINS) -> Tensor:
    return (u.flatten().double() * count).long().clamp(max=count - 1)


def check_uniform(u: Tensor, detects: float = 0.01) -> None:
    counts = torch.bincount(bins(u), minlength=BINS)
    assert_same_distribution(counts, torch.full((BINS,), 1 / BINS), detects=detects)


def check_independent(u: Tensor, v: Tensor, detects: float = 0.02) -> None:
    """Joint counts of two uniforms on a 16 x 16 grid."""
    joint = torch.bincount(bins(u, 16) * 16 + bins(v, 16), minlength=256)
    assert_same_distribution(joint, torch.full((256,), 1 / 256), detects=detects)


def to_uniform(exponentials: Tensor) -> Tensor:
    return -(-exponentials.double()).expm1()


def noise(rows: int, first: int = 0) -> Noise:
    return Noise(torch.arange(first, first + rows))


def positions(rows: int, count: int) -> Tensor:
    return torch.arange(count).expand(rows, -1)


def test_uniforms_are_uniform() -> None:
    """Catches a generator with lazy bits, over rows with consecutive seeds and over positions."""
    u = noise(1000).uniform("accept", positions(1000, 500))
    assert bool(((u > 0) & (u < 1)).all())
    check_uniform(u)


class Given(Noise):
    """Noise that follows from the keys it is given, as its seeds."""

    def keys(self, stream: str, at: Tensor) -> Tensor:
        return self.seeds[:, None].expand(at.shape)


EXTREME = [0, 1, -1, (1 << 63) - 1, -(1 << 63), -(1 << 41), (1 << 40) - 1, -(1 << 40), 1 << 62, (1 << 63) - (1 << 39)]


@given(keys=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8))
def test_uniforms_are_inside_at_their_ends(keys: list[int]) -> None:
    """With all bits set a uniform was rounded to 1.0. All values are equally far apart, and symmetric."""
    u = Given(torch.tensor(EXTREME + keys)).uniform("accept", torch.zeros((len(EXTREME + keys), 1), dtype=torch.int64))
    assert bool(((u >= 2.0**-24) & (u <= 1 - 2.0**-24)).all())
    assert bool((u * 2**23 % 1 == 0.5).all()), "rounded"
    assert u.min() == 2.0**-24 and u.max() == 1 - 2.0**-24


def test_a_sure_guess_is_kept_and_an_impossible_one_is_not_at_both_ends() -> None:
    """Where p equals q a guess is kept whatever r is, and where p is 0 it is not: r is never 0 and never 1."""
    noise = Given(torch.tensor([-1, 0]))  # the largest r, the smallest
    at = torch.zeros((2, 2), dtype=torch.int64)
    tokens, proposed = torch.zeros((2, 1), dtype=torch.int64), torch.ones((2, 1), dtype=torch.bool)
    q = torch.tensor([0.7, 0.3]).expand(2, 1, 2)
    draft = Draft(tokens, q, proposed)
    for verifier in (maximal_coupling, block_coupling):
        same = verifier(q.expand(2, 2, 2).contiguous(), draft, noise, at)
        assert same.accepted.tolist() == [1, 1]
        never = verifier(torch.tensor([0.0, 1.0]).expand(2, 2, 2).contiguous(), draft, noise, at)
        assert never.accepted.tolist() == [0, 0] and never.token.tolist() == [1, 1]


def test_arrivals_are_finite_and_positive_at_their_ends() -> None:
    """A race divides by them: with no bit set, or with all, they are numbers above 0, alike in numpy and torch."""
    bits = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 2**31 - 64, 2**30], dtype=torch.int32)
    found = exponential(open_uniform(bits, torch), torch)
    assert bool(found.isfinite().all()) and bool((found > 0).all())
    assert np.array_equal(exponential(open_uniform(bits.numpy(), np), np), found.numpy())


def test_races_are_exponential() -> None:
    """Catches arrival times that are not exponential: then draws do not follow their weights."""
    check_uniform(to_uniform(noise(50).race("token", positions(50, 40), 250)))


def test_the_winner_of_a_large_vocabulary_arrives_in_time() -> None:
    """Catches a race too coarse near zero, where large vocabularies are decided: the minimum is exponential too."""
    size = 4_000
    first = noise(64).race("token", positions(64, 50), size).min(-1)
    counts = torch.bincount(bins(to_uniform(first.values * size), 8), minlength=8)
    assert_same_distribution(counts, torch.full((8,), 1 / 8), detects=0.1)
    wins = torch.bincount(first.indices.flatten() // 500, minlength=8)
    assert_same_distribution(wins, torch.full((8,), 1 / 8), detects=0.1)


def neighbours() -> dict[str, tuple[Tensor, Tensor]]:
    """Pairs of values that must have nothing to do with each other."""
    rows, at = 500, positions(500, 600)
    u = noise(rows).uniform("accept", at)
    race = to_uniform(noise(100).race("token", positions(100, 60), 60))
    draft = to_uniform(noise(100).child("draft").race("token", positions(100, 60), 60))
    return {
        "next position": (u[:, :-1], u[:, 1:]),
        "next row": (u[:-1], u[1:]),
        "far position": (u, noise(rows).uniform("accept", at + 4096)),
        "other stream": (u, noise(rows).uniform("token", at)),
        "child": (u, noise(rows).child("draft").uniform("accept", at)),
        "seed and position swapped": (u[:, :500], u.T[:500]),
        "next token": (race[..., :-1], race[..., 1:]),
        "race at the next position": (race[:, :-1], race[:, 1:]),
        "race of the next row": (race[:-1], race[1:]),
        "race of the draft": (race, draft),
        "acceptance and race": (u, to_uniform(noise(rows).race("token", at, 1)[..., 0])),
    }


@pytest.mark.parametrize("pair", neighbours())
def test_neighbours_are_independent(pair: str) -> None:
    """Catches streams, rows, positions or tokens that share noise: acceptance would depend on the guess."""
    u, v = neighbours()[pair]
    if pair == "seed and position swapped":
        off = ~torch.eye(500, dtype=torch.bool)
        u, v = u[off], v[off]
    check_independent(u, v)


def test_draws_follow_their_weights_along_a_row() -> None:
    """Catches noise that is right over many seeds but not along the positions of one."""
    weights = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.025], dtype=torch.float64)
    tokens = draw(weights.expand(1, 200_000, 5), Noise(torch.tensor([7])).race("token", positions(1, 200_000), 5))
    assert_same_distribution(torch.bincount(tokens[0], minlength=5), weights, detects=0.02)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=4), st.integers(0, 10_000), st.integers(1, 4))
def test_values_do_not_depend_on_layout(seeds: list[int], first: int, count: int) -> None:
    """Catches noise tied to the batch, the slice or the vocabulary's size: rerun and batch invariance need this."""
    whole = Noise(torch.tensor(seeds))
    at = torch.arange(first, first + count).expand(len(seeds), -1)
    race, u = whole.race("token", at, 40), whole.uniform("accept", at)
    for row, seed in enumerate(seeds):
        alone = Noise(torch.tensor([seed]))
        for k in range(count):
            where = at[row : row + 1, k : k + 1]
            assert torch.equal(alone.race("token", where, 25)[0, 0], race[row, k, :25])
            assert torch.equal(alone.uniform("accept", where)[0, 0], u[row, k])
    assert torch.equal(whole.race("token", at, 40), race)


def test_exponential_is_accurate() -> None:
    """Catches a series cut too short: against float64 -log1p(-u), to a few units in the last place everywhere."""
    edges = torch.tensor([0, 1, 2, 2**30 - 1, 2**30, 2**31 - 1, -1, -(2**31), 2**23, 2**24 + 1], dtype=torch.int32)
    random = torch.randint(-(2**31), 2**31 - 1, (1_000_000,), dtype=torch.int32)
    bits = torch.cat([edges, random, torch.arange(4096, dtype=torch.int32), random // 2**12])
    got = exponential(open_uniform(bits, torch), torch)
    u = ((bits & 0x7FFFFFFF).to(torch.float32) + 0.5) * 2.0**-31
    exact = -torch.log1p(-u.clamp(max=1 - 2.0**-24).double())
    assert bool((got > 0).all()) and bool(got.isfinite().all())
    assert float(((got.double() - exact) / exact).abs().max()) < 5e-7


def test_silence_ties_every_race() -> None:
    """Catches randomness at temperature 0: the one token of a one-hot distribution wins, with any seed."""
    silence = Silence(torch.tensor([1, 2]))
    assert silence.child("draft") is silence
    weights = torch.tensor([[[0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0]]])
    assert draw(weights, silence.race("token", torch.zeros((2, 1)), 3)).tolist() == [[2], [0]]


@given(st.integers(0, 10_000), st.sampled_from([3, 1500, 5000]), st.sampled_from([0.5, 4.0, 14.0]), st.booleans())
def test_the_winner_is_the_draw_to_the_bit(first: int, size: int, sharpness: float, cut: bool) -> None:
    """Catches a race decided without its winner: bounds that are none, other noise, ties that end differently."""
    random = torch.Generator().manual_seed(first)
    weights = (torch.randn((2, 2, size), generator=random) * sharpness).softmax(-1)
    weights = torch.where(weights < 0.1 * weights.amax(-1, keepdim=True), 0.0, weights) if cut else weights
    at = torch.arange(first, first + 2).expand(2, -1)
    drawn = draw(weights, noise(2).race("token", at, size))
    assert torch.equal(noise(2).winner("token", at, weights), drawn)
    known = (torch.arange(size) % 3 != 1).nonzero()[:, 0]
    trimmed = torch.zeros_like(weights).index_copy_(-1, known, weights[..., known])
    if bool((trimmed.amax(-1) > 0).all()):
        among = noise(2).winner("token", at, weights[..., known].contiguous(), counter_of(known))
        assert torch.equal(known[among], draw(trimmed, noise(2).race("token", at, size)))


def test_weights_that_are_no_numbers_still_have_an_index() -> None:
    """Catches an index out of range where a model returned NaN: the row is ended by whoever emits tokens."""
    weights = torch.full((1, 1, 2000), torch.nan)
    assert noise(1).winner("token", torch.zeros((1, 1), dtype=torch.int64), weights).tolist() == [[0]]


def test_keys_of_a_few_positions_are_those_of_many() -> None:
    """Catches a shortcut for short texts whose noise differs: one row's text would depend on its neighbours."""
    seeds = torch.tensor([0, -1, 2**62, -(2**63), 12345])
    at = torch.tensor([[0, 1, 7], [2**40, 3, 9], [5, 6, 8], [10**9, 2, 4], [11, 12, 13]])
    wide = at.repeat(1, 8)  # beyond the few that are worked out one by one
    for noise in (Noise(seeds), Noise(seeds).child("draft")):
        assert torch.equal(noise.keys("token", at), noise.keys("token", wide)[:, :3])
        assert noise.keys("token", at[:, :0]).shape == (5, 0)
