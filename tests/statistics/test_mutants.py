"""Mutants: every wrong rule or drafter here has been somebody's bug. Each must be caught, or tests prove nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from distributions import SAMPLINGS, TARGET, VOCAB, check_distribution, drafters
from torch import Tensor

from outrider.core import algorithm
from outrider.core.context import Context
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape, Verdict, Verifier
from outrider.core.sampling import Sampling, draw, standardise
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import accepted_prefix, maximal_coupling, take
from outrider.drafters import ModelDrafter


def caught(drafter: Drafter, verifier: Verifier, sampling: Sampling = SAMPLINGS["temperature 1"], **how: int) -> None:
    with pytest.raises(AssertionError, match="not the expected distribution|probability zero"):
        check_distribution(drafter, verifier, sampling, rows=40_000, detects=0.035, **how)


def q_at(draft: Draft, n: Tensor, p: Tensor) -> Tensor:
    """q at index n [B] of each row, [B, V]; zeros where nothing was proposed."""
    return take(draft.padded(p[:, None].expand(-1, draft.tokens.shape[1] + 1, -1)), n)


class Parts:
    """Maximal coupling in its parts; a mutant replaces one."""

    def uniforms(self, noise: Noise, at: Tensor, draft: Draft) -> Tensor:
        return noise.uniform("accept", at)

    def keep(self, r: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return r * q <= p

    def rest(self, p: Tensor, n: Tensor, draft: Draft) -> Tensor:
        return (p - q_at(draft, n, p)).clamp(min=0)

    def rule(self, p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        guesses = draft.tokens.shape[1]
        r = self.uniforms(noise, at[:, :guesses], draft)
        p_of_x = p[:, :guesses].gather(-1, draft.tokens[..., None])[..., 0]
        n = accepted_prefix(draft.proposed & self.keep(r, p_of_x, draft.of_tokens()))
        rest = self.rest(take(p, n), n, draft)
        t = draw(rest, noise.race("token", take(at, n)[:, None], p.shape[-1])[:, 0])
        return Verdict(n, t)

    @classmethod
    def verifier(cls, shares_noise: bool = False) -> Verifier:
        return Verifier(cls.__name__, cls().rule, exact=True, shares_noise=shares_noise)


class FullResidual(Parts):
    """After a rejection, draws from p instead of max(0, p - q)."""

    def rest(self, p: Tensor, n: Tensor, draft: Draft) -> Tensor:
        return p


class AbsoluteResidual(Parts):
    """|p - q| instead of max(0, p - q)."""

    def rest(self, p: Tensor, n: Tensor, draft: Draft) -> Tensor:
        return (p - q_at(draft, n, p)).abs()


class BonusFromResidual(Parts):
    """After full acceptance, still subtracts the q of the last guess."""

    def rest(self, p: Tensor, n: Tensor, draft: Draft) -> Tensor:
        return (p - q_at(draft, n.clamp(max=draft.tokens.shape[1] - 1), p)).clamp(min=0)


class SameUniform(Parts):
    """One r for all guesses of a run."""

    def uniforms(self, noise: Noise, at: Tensor, draft: Draft) -> Tensor:
        return noise.uniform("accept", at[:, :1]).expand_as(at)


class ReseededUniform(Parts):
    """r counts from the start of each run, so every run uses the same."""

    def uniforms(self, noise: Noise, at: Tensor, draft: Draft) -> Tensor:
        return noise.uniform("accept", at - at[:, :1])


class Threshold(Parts):
    """Keeps a guess if and only if p >= q: no randomness at all."""

    def keep(self, r: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return p >= q


class Lenient(Parts):
    """Keeps a guess a little too easily."""

    def keep(self, r: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return 0.8 * r * q <= p


class UniformFromTheDraft(Parts):
    """r comes from the noise the guess was drawn with: acceptance is no longer independent of the guess."""

    def uniforms(self, noise: Noise, at: Tensor, draft: Draft) -> Tensor:
        race = noise.child("draft").race("token", at, VOCAB).gather(-1, draft.tokens[..., None])[..., 0]
        return 1 - (-race).exp()


def test_the_parts_put_together_are_the_rule() -> None:
    """Catches a scaffold that is itself wrong: unchanged, it passes and agrees with the product."""
    check_distribution(drafters()["near"], Parts.verifier())


@pytest.mark.parametrize("mutant", [FullResidual, AbsoluteResidual, SameUniform, Threshold, Lenient])
def test_wrong_rules(mutant: type[Parts]) -> None:
    """Catches a distribution test too weak to see a wrong residual, a shared r, or a wrong threshold."""
    caught(drafters()["near"], mutant.verifier())


def test_bonus_token() -> None:
    """Catches a distribution test blind to the token after full acceptance."""
    caught(drafters()["near"], BonusFromResidual.verifier(), gamma=1)


def test_reseeded_uniforms() -> None:
    """Catches a distribution test blind to noise repeated from run to run."""
    caught(drafters()["near"], ReseededUniform.verifier(), gamma=1)


def test_draft_shares_the_token_noise_under_maximal_coupling() -> None:
    """Catches a distribution test blind to a draft drawn with the noise of the correction."""
    caught(drafters()["uniform"], Parts.verifier(shares_noise=True))


def test_draft_shares_the_acceptance_noise() -> None:
    """Catches a distribution test blind to acceptance that depends on how the guess was drawn."""
    caught(drafters()["near"], UniformFromTheDraft.verifier())


class _Changed:
    """A model drafter whose drafts are changed on their way out."""

    name = "changed"

    def __init__(self, change: Callable[[Draft, Context], Draft]) -> None:
        self.change = change

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session = ModelDrafter(TARGET.near(0.5)).start(rows, shape, target)
        propose = session.propose

        def changed(gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
            return self.change(propose(gamma, sampling, noise, at), session.session.context)  # type: ignore[attr-defined]

        session.propose = changed  # type: ignore[method-assign]
        return session


def probs_of(draft: Draft) -> Tensor:
    assert draft.probs is not None
    return draft.probs


def raw(draft: Draft, context: Context) -> Draft:
    """Drawn after top-k, reported before it."""
    blurred = 0.7 * probs_of(draft) + 0.3 / VOCAB
    return Draft(draft.tokens, blurred, draft.proposed)


def argmax(draft: Draft, context: Context) -> Draft:
    """The likeliest token with the soft distribution beside it."""
    return Draft(probs_of(draft).argmax(-1), draft.probs, draft.proposed)


def confident(draft: Draft, context: Context) -> Draft:
    """Unlikely guesses are withdrawn after they were drawn."""
    likely = (draft.of_tokens() > 0.25).to(torch.int64).cumprod(1).bool()
    return Draft(draft.tokens, draft.probs, draft.proposed & likely)


def shifted(draft: Draft, context: Context) -> Draft:
    """Every guess reported with the distribution of the one before."""
    return Draft(draft.tokens, probs_of(draft).roll(1, 1), draft.proposed)


@pytest.mark.parametrize("change", [raw, argmax, confident, shifted])
def test_wrong_drafts(change: Callable[[Draft, Context], Draft]) -> None:
    """Catches a distribution test too weak to see that the q reported is not the q drawn from."""
    caught(_Changed(change), maximal_coupling, SAMPLINGS["top-k"])


def test_an_argmax_draft_as_a_point_mass_is_right() -> None:
    """Catches a distribution test that fails everything: the same argmax guesses, honestly reported, pass."""
    honest = _Changed(lambda draft, _: Draft(probs_of(draft).argmax(-1), None, draft.proposed))
    check_distribution(honest, maximal_coupling, SAMPLINGS["top-k"])


def test_penalties_blind_to_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a distribution test blind to penalties that do not see the guesses before a position."""

    def blind(logits: Tensor, sampling: Sampling, context: Context, tail: Tensor) -> Tensor:
        return torch.cat(
            [standardise(logits[:, k : k + 1], sampling, context, tail[:, :0]) for k in range(logits.shape[1])], 1
        )

    monkeypatch.setattr(algorithm, "standardise", blind)
    for verifier in (maximal_coupling, gumbel_coupling):
        caught(drafters()["near"], verifier, SAMPLINGS["penalties"])


def redraw(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    """Matching that draws afresh after a mismatch, though a mismatch says which token it was not."""
    verdict = gumbel_coupling(p, draft, noise, at)
    fresh = draw(take(p, verdict.accepted), noise.race("again", take(at, verdict.accepted)[:, None], VOCAB)[:, 0])
    rejected = verdict.accepted < draft.proposed.sum(-1)
    return Verdict(verdict.accepted, torch.where(rejected, fresh, verdict.token))


def bonus_from_draft(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    """The token after full acceptance comes from the last guess's distribution."""
    verdict = gumbel_coupling(p, draft, noise, at)
    bonus = draw(probs_of(draft)[:, -1], noise.race("token", at[:, -1:], VOCAB)[:, 0])
    return Verdict(verdict.accepted, torch.where(verdict.accepted == draft.tokens.shape[1], bonus, verdict.token))


@pytest.mark.parametrize("rule", [redraw, bonus_from_draft])
def test_wrong_matching(rule: Callable[..., Verdict]) -> None:
    """Catches a distribution test too weak for mistakes in Gumbel coupling."""
    caught(drafters()["near"], Verifier("wrong", rule, exact=True, shares_noise=True), gamma=1)
