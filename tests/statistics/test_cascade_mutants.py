"""Wrong cascades must be caught, by the distribution of the text and by check_drafter: each here looks plausible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from distributions import SAMPLINGS, TARGET, VOCAB, cascade, check_distribution
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape, Verdict, Verifier
from outrider.core.sampling import Sampling, draw
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling, take
from outrider.drafters import cascade as module
from outrider.testing import check_drafter


class Changed:
    """The cascade of the distributions with a draft changed on its way out, or with other noise on its way in."""

    name = "changed"

    def __init__(
        self,
        after: Callable[[Draft, DraftSession], Draft] = lambda draft, _: draft,
        before: Callable[[Noise], Noise] = lambda noise: noise,
    ) -> None:
        self.after, self.before = after, before

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session = cascade().start(rows, shape, target)
        propose = session.propose

        def changed(gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
            draft = propose(gamma, sampling, self.before(noise), at)
            return (
                self.after(draft, session) if draft.by_verification else draft
            )  # where tokens are drawn, bits are compared

        session.propose = changed  # type: ignore[method-assign]
        return session


def caught(drafter: Drafter, **how: int) -> None:
    with pytest.raises(AssertionError, match="not the expected distribution|probability zero"):
        check_distribution(drafter, maximal_coupling, SAMPLINGS["temperature 1"], rows=40_000, detects=0.035, **how)


def caught_by_check(drafter: Drafter) -> None:
    with pytest.raises(AssertionError, match="do not follow the q reported|not the expected distribution"):
        check_drafter(drafter, TARGET)


def as_printed(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    """Algorithm 3 as printed: the token after a rejection is the middle model's own, not the residual's."""
    n = maximal_coupling(p, draft, noise, at).accepted
    return Verdict(n, draw(take(p, n), noise.race("token", take(at, n)[:, None], VOCAB)[:, 0]))


def test_algorithm_3_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a test blind to the printed rule, which gives the text of neither model."""
    printed = Verifier("printed", as_printed, exact=False, shares_noise=False)
    monkeypatch.setattr(module, "maximal_coupling", printed)
    caught(cascade(once=True))
    caught_by_check(cascade(once=True))


def test_lower_draft_drawn_with_the_noise_of_the_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a distribution test blind to noise shared between two levels that must be independent."""
    monkeypatch.setattr(
        module, "maximal_coupling", Verifier("shared", maximal_coupling.rule, exact=True, shares_noise=True)
    )
    caught(cascade())


def test_noise_of_the_target_inside() -> None:
    """Catches a distribution test blind to a middle level that decides by the very numbers the target decides by."""
    caught(Changed(before=lambda noise: _Renamed(noise.seeds)))


class _Renamed(Noise):
    """The target's streams in disguise: the cascade takes them for streams of its own."""

    @property
    def is_the_targets(self) -> bool:
        return False


def only_likely(draft: Draft, session: DraftSession) -> Draft:
    """Throws guesses away because of what they are."""
    assert draft.probs is not None
    likely = (draft.of_tokens() > 0.25).to(torch.int64).cumprod(1).bool()
    return Draft(draft.tokens, draft.probs, draft.proposed & likely, draft.by_verification)


def sharpened(draft: Draft, session: DraftSession) -> Draft:
    """Reports another q than the one the tokens follow, under the cover of by_verification."""
    assert draft.probs is not None
    q = draft.probs.square()
    return Draft(draft.tokens, q / q.sum(-1, keepdim=True), draft.proposed, by_verification=True)


def shifted(draft: Draft, session: DraftSession) -> Draft:
    """A slip of one place where distributions of several runs are put together."""
    assert draft.probs is not None
    return Draft(draft.tokens, draft.probs.roll(1, 1), draft.proposed, draft.by_verification)


def test_the_scaffold_is_right() -> None:
    """Catches mutants that are caught because of what they are built on."""
    check_distribution(Changed(), maximal_coupling, rows=40_000, detects=0.035)


@pytest.mark.parametrize("after", [only_likely, sharpened, shifted])
def test_wrong_drafts(after: Callable[[Draft, DraftSession], Draft]) -> None:
    """Catches a distribution test too weak to see guesses selected by value, or a q that is not theirs."""
    caught(Changed(after))


@pytest.mark.parametrize("after", [sharpened, shifted])
def test_check_drafter_sees_them(after: Callable[[Draft, DraftSession], Draft]) -> None:
    """Catches a check_drafter that takes by_verification for an excuse."""
    caught_by_check(Changed(after))


def test_shared_noise_must_give_the_very_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a check that forgets the bitwise contract where it still holds: Gumbel coupling would lose guesses."""
    monkeypatch.setattr(module, "gumbel_coupling", maximal_coupling)
    with pytest.raises(AssertionError, match="the q reported is not the q drawn from"):
        check_drafter(cascade(), TARGET)


def test_the_distribution_of_gumbel_coupling() -> None:
    """Catches matching inside that leaves the target's distribution."""
    check_distribution(cascade(), gumbel_coupling, rows=40_000, detects=0.035)
