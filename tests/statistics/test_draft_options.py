"""A draft with a temperature, top-k or top-p of its own: the text's distribution stays the target's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributions import SAMPLINGS, TARGET, check_distribution
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape, Verifier
from outrider.core.sampling import Sampling
from outrider.core.verification.block import block_coupling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.drafters import Copying, Fallback, ModelDrafter, Ngram, Nothing, Standardised, Uniform
from outrider.errors import BadOption
from outrider.testing import check_drafter, sample

NEAR = ModelDrafter(TARGET.near(0.5), "near")
OWN = {"colder": {"temperature": 0.5}, "greedy": {"temperature": 0.0}, "top-k": {"top_k": 2}, "top-p": {"top_p": 0.6}}


@pytest.mark.parametrize("own", OWN)
def test_distribution_with_options_of_the_drafts_own(own: str) -> None:
    """Catches p cut as the draft was, or q reported as the target would have had it."""
    check_distribution(Standardised(NEAR, **OWN[own]), maximal_coupling, rows=60_000, detects=0.026)  # type: ignore[arg-type]


@pytest.mark.parametrize("verifier", [block_coupling, gumbel_coupling], ids=lambda v: v.name)
def test_distribution_under_the_other_couplings(verifier: Verifier) -> None:
    """Catches a coupling that counts on both models having the same options."""
    mixed = Standardised(NEAR, 0.5, top_k=3)
    check_distribution(mixed, verifier, SAMPLINGS["top-p"], rows=60_000, detects=0.03)


class _Misreported:
    """Draws with its own options and reports what the target's options would have given: raw q."""

    name = "misreported"

    def __init__(self, **own: float) -> None:
        self.own = own

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session = NEAR.start(rows, shape, target)
        propose, own = session.propose, self.own

        def wrong(gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
            drawn = propose(gamma, replace(sampling, **own), noise, at)  # type: ignore[arg-type]
            session.session.commit(drawn.tokens[:, :0], drawn.tokens.new_zeros(len(drawn.tokens)))  # type: ignore[attr-defined]
            raw = propose(gamma, sampling, noise, at)
            return Draft(drawn.tokens, raw.probs, drawn.proposed)

        session.propose = wrong  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("own", ["colder", "top-k"])
def test_raw_q_is_caught(own: str) -> None:
    """Catches a test blind to the bug that recurred three times elsewhere: drawn from one q, judged by another."""
    wrong: Drafter = _Misreported(**OWN[own])
    with pytest.raises(AssertionError, match="not the expected distribution"):
        check_distribution(wrong, maximal_coupling, rows=40_000, gamma=1, detects=0.035)


def test_its_guesses_are_its_own() -> None:
    """Catches options that never reach the draft: at temperature 0 it proposes its likeliest token, always."""
    shape = Shape(capacity=64, width=4)
    target = TARGET.start(1, shape)

    def proposals(drafter: Drafter, sampling: Sampling) -> Draft:
        session = drafter.start(1, shape, target)
        session.admit(0, (1, 2, 0))
        session.select(torch.zeros(500, dtype=torch.int64))
        at = torch.arange(3, 5).expand(500, -1)
        return session.propose(1, sampling, Noise(torch.arange(500)), at)

    assert len(proposals(NEAR, Sampling(1.0)).tokens.unique()) > 2
    assert len(proposals(Standardised(NEAR, 0.0), Sampling(1.0)).tokens.unique()) == 1
    two = proposals(Standardised(NEAR, top_k=2), Sampling(1.0))
    assert two.probs is not None and bool(((two.probs > 0).sum(-1) == 2).all())
    greedy = proposals(Standardised(NEAR, 0.9), Sampling())  # the target is greedy: so is the draft
    assert greedy.probs is not None and bool((greedy.probs.amax(-1) == 1).all())


def test_conformance() -> None:
    """Catches a wrapper that forgets a method, or breaks the contract at temperature 0."""
    for drafter in (Standardised(Uniform(), 0.7, 5, 0.9), Standardised(Fallback(Copying(), Uniform()), top_k=3)):
        check_drafter(drafter)


def test_the_text_does_not_show_it_under_gumbel_coupling() -> None:
    """Catches a draft whose options leak into the target's."""
    how = {"prompts": [(1, 2)], "rows": 200, "length": 10}
    plain = sample(TARGET, None, gumbel_coupling, Sampling(1.0), **how)  # type: ignore[arg-type]
    own = sample(TARGET, Standardised(NEAR, 0.3), gumbel_coupling, Sampling(1.0), **how)  # type: ignore[arg-type]
    assert torch.equal(plain, own)


def test_names_and_refusals() -> None:
    """Catches a setting that does not show in statistics, or one that could have no effect."""
    assert Standardised(NEAR, 0.5, 20, 0.9).name == "near at temperature 0.5, top-k 20, top-p 0.9"
    assert Standardised(NEAR).name == "near" and Standardised(NEAR, 1.0).traits == NEAR.traits
    assert not hasattr(Standardised(Ngram()), "gamma")
    for nothing in (Copying(), Nothing()):
        with pytest.raises(BadOption, match=f"'{nothing.name}' draws nothing"):
            Standardised(nothing, 0.5)
    with pytest.raises(BadOption, match="has sampling options of its own already"):
        Standardised(ModelDrafter(TARGET, sampling=Sampling(0.5)), 0.5)
    with pytest.raises(BadOption, match="top_k must be at least 1"):
        Standardised(NEAR, top_k=0)
