"""Block verification proved, not sampled: the distribution of a whole block, added up over all drafts and all noise."""

from __future__ import annotations

import pytest
import torch
from block_worlds import (
    SIZE,
    World,
    emitted_distribution,
    expected,
    prefixes,
    random_world,
    target_distribution,
    worlds,
)
from hypothesis import given, settings
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Verdict
from outrider.core.verification.block import block_coupling, prefix_weights


@settings(max_examples=25, deadline=None)
@given(worlds(2))
def test_distribution_of_the_block_is_the_targets(world: World) -> None:
    """Catches any wrong threshold, weight or residual: every draft and every way the noise can fall, added up."""
    torch.testing.assert_close(emitted_distribution(world), target_distribution(world), atol=1e-8, rtol=0)


@settings(max_examples=25, deadline=None)
@given(worlds(2, ragged=True))
def test_distribution_of_ragged_blocks(world: World) -> None:
    """Catches a threshold at the end of a short row that is not w, or a q subtracted where nothing was proposed."""
    torch.testing.assert_close(emitted_distribution(world), target_distribution(world), atol=1e-8, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_distribution_of_three_guesses(seed: int) -> None:
    """Catches what two guesses cannot show: a weight that forgets the guess before the last."""
    world = random_world(3, seed)
    torch.testing.assert_close(emitted_distribution(world), target_distribution(world), atol=1e-8, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_distribution_before_a_p_that_is_no_number(seed: int) -> None:
    """NaN behind a guess (nothing is allowed behind an end token) kept the guess from ever being accepted.

    What is emitted there is discarded, so any distribution will do there; the tokens before it must follow theirs.
    """
    known = random_world(3, seed)
    even = torch.full((SIZE,), 1 / SIZE, dtype=torch.float64)
    world = World(3, {x: even if 2 in x else p for x, p in known.p.items()}, known.q)

    def broken(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        behind = torch.nn.functional.pad((draft.tokens == 2).cumsum(1) > 0, (1, 0))
        return block_coupling.rule(p.masked_fill(behind[..., None], torch.nan), draft, noise, at)

    torch.testing.assert_close(emitted_distribution(world, broken), target_distribution(world), atol=1e-8, rtol=0)


def point(world: World) -> World:
    """The same target with a drafter that is sure of one continuation."""
    sure = {x: torch.eye(SIZE, dtype=torch.float64)[(len(x) * 2) % SIZE] for x in world.q}
    return World(world.gamma, world.p, sure)


@settings(max_examples=20, deadline=None)
@given(worlds(2))
def test_point_masses(world: World) -> None:
    """Catches copying drafts judged otherwise: their joint rule is another one, and as good, as token by token.

    An engine once switched its block rule off for drafts without probabilities, because there it kept fewer.
    """
    world = point(world)
    for dense in (True, False):
        torch.testing.assert_close(
            emitted_distribution(world, dense=dense), target_distribution(world), atol=1e-8, rtol=0
        )
    jointly, token_wise = expected(world, dense=False)
    assert jointly == pytest.approx(token_wise, abs=1e-8)


@settings(max_examples=25, deadline=None)
@given(worlds(2))
def test_never_fewer_guesses_than_token_by_token(world: World) -> None:
    """Catches a rule that is exact but wasteful: Sun et al., Theorem 2."""
    jointly, token_wise = expected(world)
    assert jointly >= token_wise - 1e-8


@settings(max_examples=25, deadline=None)
@given(worlds(1))
def test_one_guess_is_maximal_coupling(world: World) -> None:
    """Catches a block of one that is judged in any other way than the papers'."""
    jointly, token_wise = expected(world)
    assert jointly == pytest.approx(token_wise, abs=1e-8)
    torch.testing.assert_close(emitted_distribution(world), target_distribution(world), atol=1e-8, rtol=0)


def test_the_papers_example() -> None:
    """Catches a gain that is none: Sun et al. keep 11/9 guesses jointly where token by token 10/9 are kept."""
    p, q = torch.tensor([1.0, 2, 0], dtype=torch.float64) / 3, torch.tensor([2.0, 1, 0], dtype=torch.float64) / 3
    world = World(2, dict.fromkeys(prefixes(2), p), dict.fromkeys(prefixes(1), q))
    assert expected(world) == (pytest.approx(11 / 9, abs=1e-7), pytest.approx(10 / 9, abs=1e-7))


def large(rows: int = 8, guesses: int = 8, size: int = 49152, near: float = 0.7) -> tuple[Tensor, Draft]:
    """Peaked distributions over a real vocabulary in float32, and guesses drawn from q."""
    chance = torch.Generator().manual_seed(1)
    logits = torch.randn((rows, guesses + 1, size), generator=chance) * 3.5
    p = logits.softmax(-1)
    q = (logits[:, :guesses] + near * torch.randn((rows, guesses, size), generator=chance)).softmax(-1)
    tokens = torch.multinomial(q.reshape(-1, size), 1, generator=chance).reshape(rows, guesses)
    return p, Draft(tokens, q, torch.ones_like(tokens, dtype=torch.bool))


def test_single_precision_is_enough_for_a_real_vocabulary() -> None:
    """Catches cancellation in the residual's mass: float32 against float64, 49,152 tokens, gamma 8."""
    p, draft = large()
    assert draft.probs is not None
    wide = Draft(draft.tokens, draft.probs.double(), draft.proposed)
    w, exact = prefix_weights(p, draft), prefix_weights(p.double(), wide)
    torch.testing.assert_close(w, exact, atol=1e-6, rtol=1e-5)
    mass = (w[..., None].float() * p - draft.padded(like=p)).clamp(min=0).sum(-1, dtype=torch.float64)
    reference = (exact[..., None] * p.double() - wide.padded(like=p.double())).clamp(min=0).sum(-1)
    torch.testing.assert_close(mass, reference, atol=2e-6, rtol=1e-5)
    at = torch.arange(9).expand(8, -1)
    one = block_coupling(p, draft, Noise(torch.arange(8)), at)
    two = block_coupling(p.double(), wide, Noise(torch.arange(8)), at)
    assert torch.equal(one.accepted, two.accepted)
    assert 0 < float(one.accepted.double().mean()) < 8


def test_a_draft_equal_to_the_target_is_kept_whole() -> None:
    """Catches rounding that refuses p == q: then 0 is compared with 0."""
    p, draft = large(4)
    same = Draft(draft.tokens, p[:, :8].clone(), draft.proposed)
    verdict = block_coupling(p, same, Noise(torch.arange(4)), torch.arange(9).expand(4, -1))
    assert verdict.accepted.tolist() == [8] * 4


def test_numbers_of_a_run_are_not_those_of_another() -> None:
    """Catches noise addressed by position alone, which a rule that looks ahead would use twice."""
    noise, at = Noise(torch.tensor([7, 7])), torch.tensor([[5, 6, 7], [6, 7, 8]])  # two runs of one row
    for own in (noise.of_run(at), block_coupling.noise_for_draft(noise, at)):
        first, second = own.uniform("accept", at)
        assert not set(first.tolist()) & set(second.tolist())
    again = noise.of_run(at[:1]).uniform("accept", at[:1])
    assert torch.equal(again[0], noise.of_run(at).uniform("accept", at)[0])
