"""check_drafter and check_verifier find what they promise to find: each wrong one here must be caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Session, Shape, Verdict, Verifier
from outrider.core.sampling import Sampling, draw, standardise
from outrider.core.verification.maximal import maximal_coupling
from outrider.drafters.base import ContextSession
from outrider.testing import check_drafter, check_verifier


class OneTable(ContextSession):
    """An honest drafter with one fixed distribution; the wrong ones below change one thing each."""

    def __init__(self, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.generator = torch.Generator().manual_seed(0)
        self.logits = torch.linspace(-1, 1, target.vocab_size)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        rows = self.context.rows
        logits = self.logits.expand(rows, gamma, -1)
        q = standardise(logits, sampling, self.context, at[:, : max(gamma - 1, 0)] * 0)
        tokens = draw(q, noise.race("token", at[:, :gamma], q.shape[-1]))
        return self.report(Draft(tokens, q, self.context.active[:, None].expand(-1, gamma)), sampling)

    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        return draft


class SoftArgmax(OneTable):
    """Takes the likeliest token but reports the distribution it did not draw from."""

    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        assert draft.probs is not None
        return Draft(draft.probs.argmax(-1), draft.probs, draft.proposed)


class RawProbabilities(OneTable):
    """Draws after temperature, top-k and penalties, reports what was before them."""

    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        raw = self.logits.softmax(-1).expand(*draft.tokens.shape, -1)
        return Draft(draft.tokens, draft.probs if sampling.greedy else raw, draft.proposed)


class SoftAtTemperatureZero(OneTable):
    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        raw = self.logits.softmax(-1).expand(*draft.tokens.shape, -1)
        return Draft(draft.tokens, raw if sampling.greedy else draft.probs, draft.proposed)


class OwnGenerator(OneTable):
    """Point masses, but chosen by a generator that counts calls."""

    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        tokens = torch.randint(0, self.vocab_size, draft.tokens.shape, generator=self.generator)
        return Draft(tokens, None, draft.proposed)


class WithdrawsUnlikely(OneTable):
    """Stops at a guess that came out unlikely: the famous confidence rule, one token too early."""

    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        likely = (draft.of_tokens() > 0.08).to(torch.int64).cumprod(1).bool()
        return Draft(draft.tokens, draft.probs, draft.proposed & likely)


class Gap(OneTable):
    """Proposes nothing first and then something."""

    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        proposed = draft.proposed.clone()
        proposed[:, :1] = False
        return Draft(draft.tokens, draft.probs, proposed)


class Unnormalised(OneTable):
    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        assert draft.probs is not None
        return Draft(draft.tokens, draft.probs * 2, draft.proposed)


class BadToken(OneTable):
    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        return Draft(draft.tokens.clone().fill_(-1), None, draft.proposed)


class TooMany(OneTable):
    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        draft = super().propose(gamma, sampling, noise, at)
        return Draft(torch.cat([draft.tokens, draft.tokens], 1), None, torch.cat([draft.proposed, draft.proposed], 1))


class SpoilsCommit(OneTable):
    """Writes into the tensor of committed tokens, which belongs to the target."""

    def __init__(self, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.theirs = target.context

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        super().commit(tokens, count)
        index = (self.theirs.lengths - 1)[:, None]
        self.theirs.tokens.scatter_(1, index, (self.theirs.tokens.gather(1, index) + 1) % self.vocab_size)


class ForgetsSelect(OneTable):
    """Its guess depends on the row's first token, and it does not follow when rows move."""

    def select(self, rows: Tensor) -> None:
        """Nothing."""

    def report(self, draft: Draft, sampling: Sampling) -> Draft:
        return Draft(self.context.tokens[:, :1].expand_as(draft.tokens), None, draft.proposed)


class RaisesOnCommit(OneTable):
    def commit(self, tokens: Tensor, count: Tensor) -> None:
        raise RuntimeError("no room")


def drafter(session: type) -> Any:
    class Wrong:
        name = session.__name__

        def start(self, rows: int, shape: Shape, target: Session) -> Any:
            return session(rows, shape, target)

    return Wrong()


def test_an_honest_drafter_passes() -> None:
    """Catches checks that fail everything, and with it every test below."""
    check_drafter(drafter(OneTable))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (SoftArgmax, "the q reported is not the q drawn from"),
        (RawProbabilities, "the q reported is not the q drawn from"),
        (SoftAtTemperatureZero, "one-hot at temperature 0"),
        (OwnGenerator, "no other source of randomness"),
        (WithdrawsUnlikely, "must not depend on the token drawn there"),
        (Gap, "prefix"),
        (Unnormalised, "sum to 1"),
        (BadToken, "in the vocabulary"),
        (TooMany, "at most gamma"),
        (SpoilsCommit, "is not the text without"),
        (ForgetsSelect, "select"),
    ],
)
def test_wrong_drafters_are_caught(wrong: type, says: str) -> None:
    """Catches a check_drafter that lets one of these through, or blames the wrong thing."""
    with pytest.raises(AssertionError, match=says):
        check_drafter(drafter(wrong))


def test_a_drafter_that_raises_is_not_hidden_by_the_guard() -> None:
    """Catches a check that runs behind SafeDrafter and so passes a drafter that never drafts."""
    with pytest.raises((AssertionError, RuntimeError), match="no room"):
        check_drafter(drafter(RaisesOnCommit))


def rule(change: Callable[[Verdict, Tensor, Draft], Verdict], **promises: Any) -> Verifier:
    def wrong(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        return change(maximal_coupling(p, draft, noise, at), p, draft)

    return Verifier("wrong", wrong, **{"exact": True, "shares_noise": False, **promises})


@pytest.mark.parametrize(
    ("verifier", "says"),
    [
        (
            rule(lambda v, p, d: Verdict(v.accepted, p[:, 0].argmax(-1))),
            "not the greedy text|probability zero|distribution",
        ),
        (rule(lambda v, p, d: Verdict(v.accepted + 1, v.token)), "not proposed"),
        (rule(lambda v, p, d: Verdict(v.accepted, v.token.flip(0))), "probability zero|rows beside it"),
        (
            rule(lambda v, p, d: Verdict(v.accepted, torch.multinomial(p[:, 0], 1)[:, 0])),
            "second time|probability zero",
        ),
        (rule(lambda v, p, d: v, shares_noise=True), "shares the target's noise"),
        (rule(lambda v, p, d: Verdict(v.accepted, v.token), exact=True), None),
    ],
)
def test_wrong_verifiers_are_caught(verifier: Verifier, says: str | None) -> None:
    """Catches a check_verifier that lets one of these through (the last is right and must pass)."""
    if says is None:
        check_verifier(verifier, rows=20_000)
        return
    with pytest.raises(AssertionError, match=says):
        check_verifier(verifier, rows=20_000)
