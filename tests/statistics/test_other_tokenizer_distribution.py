"""Sampled text keeps its distribution with a draft of another tokenizer; drafts that report a wrong q are caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributions import PROMPT, RAGGED, SAMPLINGS, check_distribution
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, DraftSession, Session, Shape, Verifier
from outrider.core.sampling import Sampling
from outrider.core.verification.block import block_coupling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.drafters.composite import CompositeSession
from outrider.drafters.other_tokenizer import OtherTokenizerDrafter
from outrider.models.toy import ToyModel
from two_tokenizers import of_five

ROWS = {"rows": 40_000, "detects": 0.035}


def drafter() -> OtherTokenizerDrafter:
    """Six tokens; its likeliest is shared with the target now and then only."""
    return OtherTokenizerDrafter(ToyModel(6, order=2, seed=4, sharpness=1.0), of_five())


@pytest.mark.parametrize("verifier", [maximal_coupling, gumbel_coupling, block_coupling], ids=lambda v: v.name)
def test_the_distribution(verifier: Verifier) -> None:
    """Catches q that is not the draft's own over the shared tokens, and a draft that ends because of a token drawn."""
    check_distribution(drafter(), verifier, **ROWS)


@pytest.mark.parametrize("sampling", ["top-k", "top-p", "everything"])
def test_the_distribution_with_options(sampling: str) -> None:
    """Catches options applied to the draft's tokens instead of the target's."""
    check_distribution(drafter(), maximal_coupling, SAMPLINGS[sampling], **ROWS)


def test_the_distribution_of_ragged_rows() -> None:
    """Catches rows whose encodings differ in length and are mixed up."""
    check_distribution(drafter(), maximal_coupling, prompts=RAGGED, **ROWS)


class Wrong:
    """The same drafter with another report of its q."""

    name = "wrong"

    def __init__(self, what: str) -> None:
        self.what = what

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return WrongSession(self.what, drafter().start(rows, shape, target))


class WrongSession(CompositeSession):
    def __init__(self, what: str, session: DraftSession) -> None:
        super().__init__(session)
        self.what = what

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        draft = self.sessions[0].propose(gamma, sampling, noise, at)
        if draft.probs is None:
            return draft
        if self.what == "not renormalised":
            return replace(draft, probs=draft.probs * 0.6)
        if self.what == "columns of the draft":
            return replace(draft, probs=draft.probs.flip(-1))
        unlikely = draft.probs.gather(-1, torch.searchsorted(draft.support, draft.tokens)[..., None])[..., 0] < 0.25
        return replace(draft, proposed=draft.proposed & (unlikely.cumsum(-1) == 0))  # "ended by its token"


@pytest.mark.parametrize("what", ["not renormalised", "columns of the draft", "ended by its token"])
def test_mutants_are_caught(what: str) -> None:
    with pytest.raises(AssertionError, match="not the expected distribution"):
        check_distribution(Wrong(what), maximal_coupling, **ROWS)


def test_guesses_are_made_and_kept() -> None:
    """Catches distributions that hold because nothing was drafted."""
    shape = Shape(capacity=32, width=4)
    target = ToyModel(5, order=2, seed=11, sharpness=1.0).start(1, shape)
    session = drafter().start(1, shape, target)
    for each in (target, session):
        each.admit(0, PROMPT)
    at = target.context.positions(3)
    draft = session.propose(2, Sampling(1.0), Noise(torch.arange(1)), at)
    assert bool(draft.proposed[0, 0])
