"""Lenience proved: the distribution of one step added up exactly, and no token of it is above p(x) / l."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_coupling import SIZE, Chosen, distribution, every_guess
from torch import Tensor

from outrider.core.noise import Noise, Silence
from outrider.core.protocols import Draft, Verdict, Verifier
from outrider.core.sampling import Sampling, draw
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.lenient import lenient, lenient_greedy
from outrider.core.verification.maximal import corrected, kept, maximal_coupling
from outrider.drafters import ModelDrafter
from outrider.errors import BadOption
from outrider.models.toy import ToyModel
from outrider.testing import check_verifier, sample

LENIENCES = st.sampled_from([1.0, 0.9, 0.5, 0.3, 0.1, 0.01])


def judge(verifier: Verifier, p: Tensor, draft: Draft, r: Tensor) -> tuple[Verdict, Tensor]:
    """The verdict with these uniforms, and the weights the target's own token is drawn from."""
    at = torch.arange(p.shape[1]).expand(p.shape[0], -1)
    with mock.patch.object(Noise, "winner", autospec=True, side_effect=Noise.winner) as drawn:
        verdict = verifier(p, draft, Chosen(r[:, None]), at)
    return verdict, drawn.call_args.args[3][:, 0]


def step_distribution(verifier: Verifier, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Of a step's first token its distribution, and the chance of keeping each guess, both asked of the rule itself.

    The uniform at which the rule changes its mind is found by halving; what is drawn after a rejection is the
    weights it hands to ``winner``.
    """
    both, draft = every_guess(p, q, p)
    low, high = torch.zeros(SIZE, dtype=torch.float64), torch.ones(SIZE, dtype=torch.float64)
    for _ in range(40):
        middle = (low + high) / 2
        keeps = judge(verifier, both, draft, middle)[0].accepted == 1
        low, high = torch.where(keeps, middle, low), torch.where(keeps, high, middle)
    rest = judge(verifier, both, draft, (high + 1e-9).clamp(max=1))[1]  # [guess, V]
    accept = torch.where(high > 1 - 1e-9, torch.ones_like(high), high)
    return q * accept + (q * (1 - accept)) @ (rest / rest.sum(-1, keepdim=True)), accept


@settings(max_examples=40, deadline=None)
@given(distribution(), distribution(), LENIENCES)
def test_no_token_is_above_p_over_l(p: Tensor, q: Tensor, lenience: float) -> None:
    """Catches lenience on the wrong side, or in the wrong amount: the guarantee of A.5."""
    distribution, _ = step_distribution(lenient(lenience), p, q)
    torch.testing.assert_close(distribution.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert bool((distribution <= p / lenience + 1e-7).all())


@settings(max_examples=40, deadline=None)
@given(distribution(), distribution(), LENIENCES)
def test_what_the_bound_buys(p: Tensor, q: Tensor, lenience: float) -> None:
    """Catches an alpha that is not A.5's, and a correction that takes the text further from p than it must be."""
    rule = lenient(lenience)
    distribution, accept = step_distribution(rule, p, q)
    alpha = torch.minimum(p / lenience, q).sum()
    torch.testing.assert_close((q * accept).sum(), alpha, atol=1e-7, rtol=0)
    both, draft = every_guess(p, q, p)
    torch.testing.assert_close(draft.overlap(rule.ceiling(both))[0, 0], alpha)
    sure = Draft(draft.tokens, None, draft.proposed)  # one row per token, each a point mass
    torch.testing.assert_close(sure.overlap(rule.ceiling(both))[:, 0], (p / lenience).clamp(max=1))
    above = (torch.minimum(p / lenience, q) - p).clamp(min=0).sum()  # no correction takes back what was kept
    torch.testing.assert_close((distribution - p).abs().sum() / 2, above, atol=1e-7, rtol=0)


def test_the_bound_is_reached() -> None:
    """Catches a bound that holds because lenience does nothing: here a token does come out 1/l times as often."""
    p, q = torch.tensor([0.1, 0.9, 0, 0, 0]).double(), torch.tensor([0.8, 0.2, 0, 0, 0]).double()
    distribution, _ = step_distribution(lenient(0.25), p, q)
    torch.testing.assert_close(distribution[0], p[0] / 0.25, atol=1e-7, rtol=0)


def rule_with(keep: Callable[[Tensor], Tensor]) -> Verifier:
    def rule(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        return corrected(p, draft, kept(keep(p), draft, noise, at), noise, at)

    return Verifier("wrong", rule, exact=False, shares_noise=False)


@pytest.mark.parametrize(
    "wrong",
    [rule_with(lambda p: p / 0.5**2), rule_with(lambda p: p + 0.5), rule_with(lambda p: torch.ones_like(p))],
    ids=["squared", "added instead of multiplied", "keeps everything"],
)
def test_wrong_lenience_breaks_the_bound(wrong: Verifier) -> None:
    """Catches a check of the bound that cannot fail."""
    p, q = torch.tensor([0.1, 0.4, 0.5, 0, 0]).double(), torch.tensor([0.8, 0.1, 0, 0.1, 0]).double()
    distribution, _ = step_distribution(wrong, p, q)
    assert bool((distribution > p / 0.5 + 1e-3).any())
    honest, _ = step_distribution(lenient(0.5), p, q)
    assert bool((honest <= p / 0.5 + 1e-7).all())


@given(distribution(), distribution(), st.integers(0, 2**60), st.integers(0, 3), st.booleans())
def test_lenience_one_is_the_exact_rule_bit_for_bit(p: Tensor, q: Tensor, seed: int, made: int, dense: bool) -> None:
    """Catches a lenience of 1 that rounds differently: same verdict in float32, ragged and point-mass drafts too."""
    rows, guesses = 16, 3
    noise, at = Noise(torch.arange(seed, seed + rows)), torch.arange(guesses + 1).expand(rows, -1)
    p, q = p.float().expand(rows, guesses + 1, SIZE), q.float().expand(rows, guesses, SIZE)
    tokens = draw(q, noise.child("draft").race("token", at[:, :-1], SIZE))
    draft = Draft(tokens, q if dense else None, (torch.arange(guesses) < made).expand(rows, -1))
    one, two = lenient(1.0)(p, draft, noise, at), maximal_coupling(p, draft, noise, at)
    assert torch.equal(one.accepted, two.accepted) and torch.equal(one.token, two.token)
    assert lenient(1.0).exact and not lenient(0.999).exact
    assert lenient_greedy(1.0) is gumbel_coupling


def test_greedy_lenience_keeps_what_is_near_the_best() -> None:
    """Catches the comparison the wrong way round (as the paper prints it), or one with the one-hot p."""
    p = torch.tensor([[[0.5, 0.3, 0.1, 0.1, 0]] * 3] * 5)
    tokens = torch.tensor([[0, 0], [1, 0], [2, 1], [1, 1], [1, 2]])
    draft = Draft(tokens, None, torch.ones_like(tokens, dtype=torch.bool))
    at = torch.arange(3).expand(5, -1)
    verdict = lenient_greedy(0.6)(p, draft, Silence(torch.zeros(5, dtype=torch.int64)), at)
    assert verdict.accepted.tolist() == [2, 2, 0, 2, 1]
    assert verdict.token.tolist() == [0] * 5  # the target's own token is always its best
    assert draft.overlap(lenient_greedy(0.6).ceiling(p)).tolist() == [[1, 1], [1, 1], [0, 1], [1, 1], [1, 0]]


@pytest.mark.parametrize("lenience", [1.0, 0.5, 0.05])
def test_greedy_lenience_through_the_step(lenience: float) -> None:
    """Catches a rule shown the one-hot p, which would never be lenient; and every token it emits is near the best."""
    target = ToyModel(12, order=2, seed=3, sharpness=1.0)
    drafter, prompts = ModelDrafter(target.near(1.5), "near"), [(i, j) for i in range(12) for j in range(4)]
    rule, greedy = lenient_greedy(lenience), Sampling()
    how = {"prompts": prompts, "rows": len(prompts), "length": 12}
    text = sample(target, drafter, rule, greedy, **how)  # type: ignore[arg-type]
    plain = sample(target, None, rule, greedy, **how)  # type: ignore[arg-type]
    assert torch.equal(text, plain) == (lenience == 1)
    whole = torch.cat([torch.tensor(prompts), text], 1)
    p = target.table[target.states(whole)].softmax(-1)[:, 1:-1]  # behind each token from the prompt's last on
    assert bool((p.gather(-1, text[..., None])[..., 0] >= lenience * p.amax(-1) - 1e-6).all())


def test_options_still_count_for_greedy_lenience() -> None:
    """Catches options dropped with the temperature: a forbidden token is forbidden however near the best it is."""
    seen = lenient_greedy(0.5).sees(Sampling(logit_bias={3: -5.0}, top_k=4))
    assert seen == replace(Sampling(logit_bias={3: -5.0}, top_k=4), temperature=1.0)


@pytest.mark.parametrize("make", [lenient, lenient_greedy])
def test_form_and_range(make: Callable[[float], Verifier]) -> None:
    """Catches a rule that keeps what was not proposed, or a lenience of zero that keeps everything."""
    check_verifier(make(0.4))
    for bad in (0.0, -1.0, 1.01):
        with pytest.raises(BadOption, match="lenience must be above 0 and at most 1"):
            make(bad)
