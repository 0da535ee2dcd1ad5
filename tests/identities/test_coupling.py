"""Maximal coupling proved, not sampled: the distribution added up from the code's own acceptance and residual."""

from __future__ import annotations

from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Verdict
from outrider.core.sampling import draw
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import accepted_prefix, maximal_coupling

SIZE = 5


@st.composite
def distribution(draw_: st.DrawFn, size: int = SIZE) -> Tensor:
    """Small integer weights over their sum: zeros, ties and point masses come up all the time."""
    weights = draw_(st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any))
    values = torch.tensor(weights, dtype=torch.float64)
    return values / values.sum()


class Chosen(Noise):
    """Noise whose uniforms are given."""

    def __init__(self, r: Tensor) -> None:
        super().__init__(torch.arange(r.shape[0]))
        object.__setattr__(self, "r", r)

    def uniform(self, stream: str, at: Tensor) -> Tensor:
        assert stream == "accept"
        return self.r[:, : at.shape[1]]  # type: ignore[attr-defined,no-any-return]


def judge(p: Tensor, draft: Draft, r: Tensor) -> tuple[Verdict, Tensor]:
    """The rule's verdict with these uniforms, and the weights it draws its own token from."""
    at = torch.arange(p.shape[1]).expand(p.shape[0], -1)
    with mock.patch.object(Noise, "winner", autospec=True, side_effect=Noise.winner) as drawn:
        verdict = maximal_coupling(p, draft, Chosen(r), at)
    return verdict, drawn.call_args.args[3][:, 0]


def every_guess(p: Tensor, q: Tensor | None, after: Tensor, token: int = 0) -> tuple[Tensor, Draft]:
    """One row per possible guess: p at the guess and ``after`` behind it."""
    size = len(p)
    guesses = torch.arange(size)[:, None] if q is not None else torch.full((size, 1), token)
    probs = None if q is None else q.expand(size, 1, size)
    both = torch.stack([p, after]).expand(size, 2, size)
    return both, Draft(guesses, probs, torch.ones((size, 1), dtype=torch.bool))


@given(distribution(), distribution(), distribution())
def test_output_distribution_is_p(p: Tensor, q: Tensor, after: Tensor) -> None:
    """Catches any wrong acceptance probability or residual: q(x) a(x) + rejected mass * residual = p(x), exactly."""
    both, draft = every_guess(p, q, after)
    accept = torch.where(q > 0, (p / q).clamp(max=1), torch.ones_like(p))  # Leviathan: min(1, p/q)
    below, _ = judge(both, draft, (accept * (1 - 1e-9)).clamp(min=1e-12)[:, None])
    possible = (q > 0) & (accept > 0)
    assert torch.equal(below.accepted[possible], torch.ones(int(possible.sum()), dtype=torch.int64))
    above, rest = judge(both, draft, (accept * (1 + 1e-9) + 1e-12)[:, None])
    rejected = (q > 0) & (accept < 1)
    assert not bool(above.accepted[rejected].any())
    residual = rest / rest.sum(-1, keepdim=True)
    distribution = q * accept + (q * (1 - accept))[:, None].mul(residual)[rejected].sum(0)
    torch.testing.assert_close(distribution, p, atol=1e-9, rtol=0)


@given(distribution(), st.integers(0, SIZE - 1))
def test_output_distribution_is_p_for_point_masses(p: Tensor, token: int) -> None:
    """Catches copying drafts judged by anything but p(x) itself."""
    both, draft = every_guess(p, None, p, token)
    r = torch.linspace(0.01, 0.99, SIZE, dtype=torch.float64)
    verdict, rest = judge(both, draft, r[:, None])
    assert torch.equal(verdict.accepted == 1, r <= p[token])
    rejected = verdict.accepted == 0
    without = p.clone()
    without[token] = 0
    for row in rest[rejected]:
        torch.testing.assert_close(row, without if without.any() else p)


@given(distribution(), distribution(), distribution())
def test_bonus_token_is_drawn_from_p(p: Tensor, q: Tensor, after: Tensor) -> None:
    """Catches a residual after full acceptance, or where nothing was proposed: there it is p itself."""
    both, draft = every_guess(p, q, after)
    verdict, rest = judge(both, draft, torch.full((SIZE, 1), 1e-12, dtype=torch.float64))
    kept = verdict.accepted == 1
    torch.testing.assert_close(rest[kept], after.expand(int(kept.sum()), -1))
    nothing = Draft(draft.tokens, draft.probs, torch.zeros_like(draft.proposed))
    verdict, rest = judge(both, nothing, torch.full((SIZE, 1), 1e-12, dtype=torch.float64))
    assert not bool(verdict.accepted.any())
    torch.testing.assert_close(rest, p.expand(SIZE, -1))


@given(distribution())
def test_equal_distributions_are_always_accepted(p: Tensor) -> None:
    """Catches rounding that rejects p == q, and a residual of nothing."""
    both, draft = every_guess(p, p, p)
    verdict, rest = judge(both, draft, torch.full((SIZE, 1), 1 - 2.0**-25, dtype=torch.float64))
    assert bool(verdict.accepted[p > 0].all())
    assert bool((rest.sum(-1) > 0).all())


@given(distribution(), distribution(), st.lists(st.booleans(), min_size=3, max_size=3))
def test_nothing_is_taken_from_p_where_nothing_was_proposed(p: Tensor, q: Tensor, flags: list[bool]) -> None:
    """Catches a q subtracted for a guess that was never made."""
    proposed = torch.tensor([flags]).to(torch.int64).cumprod(1).bool().expand(4, -1)
    tokens = torch.tensor([[0, 1, 2]]).expand(4, -1)
    n = torch.arange(4)
    for probs in (q.expand(4, 3, SIZE), None):
        got = Draft(tokens, probs, proposed).taken_from(p.expand(4, SIZE), n)
        for row in range(4):
            one_hot = torch.nn.functional.one_hot(tokens[row, min(row, 2)], SIZE).to(torch.float64)
            expected = torch.zeros(SIZE, dtype=torch.float64)
            if row < 3 and bool(proposed[row, row]):
                expected = one_hot if probs is None else q
            assert torch.equal(got[row], (p - expected).clamp(min=0))
    assert torch.equal(Draft.empty(4, torch.device("cpu")).taken_from(p.expand(4, SIZE), n * 0), p.expand(4, SIZE))


@given(distribution(), distribution(), st.integers(0, SIZE - 1))
def test_overlap_is_one_minus_total_variation(p: Tensor, q: Tensor, token: int) -> None:
    """Catches an alpha that is not the papers': beta = 1 - TV(p, q), Theorem 3.5; zero where nothing was proposed."""
    tokens = torch.full((2, 1), token)
    proposed = torch.tensor([[True], [False]])
    both = torch.stack([p, p]).expand(2, 2, SIZE)
    point = torch.nn.functional.one_hot(torch.tensor(token), SIZE).to(torch.float64)
    for probs, used in ((q.expand(2, 1, SIZE), q), (None, point)):
        overlap = Draft(tokens, probs, proposed).overlap(both)
        torch.testing.assert_close(overlap[0, 0], 1 - (p - used).abs().sum() / 2)
        assert overlap[1, 0] == 0


def test_a_token_of_probability_zero_is_never_kept() -> None:
    """r q of the smallest q is rounded to zero, and zero is not above a p of zero: such a guess was kept."""
    q, p = torch.zeros(1, 1, SIZE), torch.zeros(1, 2, SIZE)
    q[..., 0], q[..., 1] = 1e-45, 1.0
    p[..., 1] = 1.0
    draft = Draft(torch.zeros((1, 1), dtype=torch.int64), q, torch.ones((1, 1), dtype=torch.bool))
    verdict, _ = judge(p, draft, torch.tensor([[0.25]]))
    assert verdict.accepted.tolist() == [0]


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6))
def test_the_first_rejection_ends_a_row(kept: list[list[bool]]) -> None:
    """Catches guesses counted as accepted behind a rejected one."""
    expected = [row.index(False) if False in row else len(row) for row in kept]
    assert accepted_prefix(torch.tensor(kept)).tolist() == expected


@given(distribution(), distribution(), st.integers(0, 2**62))
def test_matching_keeps_exactly_the_targets_own_tokens(p: Tensor, q: Tensor, seed: int) -> None:
    """Catches Gumbel coupling that emits anything but what plain decoding with the same noise emits."""
    noise, at = Noise(torch.tensor([seed])), torch.arange(7, 11)[None]
    both = p.expand(1, 4, SIZE)
    own = draw(both, noise.race("token", at, SIZE))
    guesses = draw(q.expand(1, 3, SIZE), noise.race("token", at[:, :3], SIZE))
    draft = Draft(guesses, q.expand(1, 3, SIZE), torch.ones((1, 3), dtype=torch.bool))
    verdict = gumbel_coupling(both, draft, noise, at)
    n = int(verdict.accepted)
    emitted = [*guesses[0, :n].tolist(), int(verdict.token)]
    assert emitted == own[0, : n + 1].tolist()
    assert n == 3 or guesses[0, n] != own[0, n]
