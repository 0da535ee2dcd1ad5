"""Guesses that are nobody's: q is no distribution, or the token does not exist. Nothing of them reaches the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import run
from outrider.core.protocols import Draft, Drafter, Shape, Verifier
from outrider.core.sampling import Sampling, standardise
from outrider.core.verification.block import block_coupling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.lenient import lenient
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Cascade, Copying, Fallback, Mixture, ModelDrafter, Ngram, Nothing, Suffix, Uniform
from outrider.models.toy import ToyModel

TARGET = ToyModel(8, seed=1)
PROMPT = (3, 5, 3, 5, 3)
NO_FIVE = Sampling(1.0, logit_bias={5: -torch.inf})  # all that the prompt's n-grams know
COUPLINGS = (maximal_coupling, block_coupling, lenient(0.7), gumbel_coupling)


class Saying:
    """Proposes what a function of the rows and gamma returns."""

    name = "saying"

    def __init__(self, draft: Callable[[int, int], Draft]) -> None:
        self.draft = draft

    def start(self, rows: int, shape: Shape, target: Any) -> Any:
        session = Nothing().start(rows, shape, target)
        session.propose = lambda gamma, *_: self.draft(rows, gamma)  # type: ignore[attr-defined]
        return session


def with_q(value: float, support: torch.Tensor | None = None) -> Saying:
    """Guesses token 2 with a q that has the same value everywhere."""
    size = 8 if support is None else len(support)

    def draft(rows: int, gamma: int) -> Draft:
        tokens = torch.full((rows, gamma), 2)
        return Draft(tokens, torch.full((rows, gamma, size), value), tokens > 0, support=support)

    return Saying(draft)


def outside(rows: int, gamma: int) -> Draft:
    """The first guess is real; what stands behind it is no token, and is not proposed."""
    tokens = torch.tensor([[5, 99, -1][:gamma]] * rows)
    return Draft(tokens, None, tokens == 5)


NOTHING_USABLE: dict[str, Drafter] = {
    "ngram": Ngram(),
    "suffix": Suffix(shortest=1, floor=0),
    "NaN": with_q(torch.nan),
    "zeros": with_q(0.0),
    "infinite": with_q(torch.inf),
    "NaN of some tokens": with_q(torch.nan, torch.tensor([1, 2, 5])),
    "not of the tokens it knows": with_q(0.5, torch.tensor([4, 5])),
    "twice": Fallback(Ngram(), with_q(torch.nan)),
    "mixed": Mixture(Copying(shortest=4), Ngram()),
}


@pytest.mark.parametrize("coupling", COUPLINGS, ids=lambda v: v.name)
@pytest.mark.parametrize("name", NOTHING_USABLE)
def test_a_q_that_is_no_distribution_is_no_guess(name: str, coupling: Verifier) -> None:
    """Where options forbade all a draft knew, q was NaN, p - q too, and every text went on with token 0."""
    requests = [Request(PROMPT, Stopping(1), seed=seed) for seed in range(60)]
    plain, _ = run(TARGET, Nothing(), requests, 0, NO_FIVE, coupling)
    texts, trace = run(TARGET, NOTHING_USABLE[name], requests, 2, NO_FIVE, coupling)
    assert texts == plain
    assert not any(record.drafted for record in trace.records)


@pytest.mark.parametrize("coupling", COUPLINGS[:3], ids=lambda v: v.name)
@pytest.mark.parametrize("support", [None, torch.tensor([0, 3, 4])], ids=["all", "some"])
@pytest.mark.parametrize("bad", [torch.nan, -1.0])
def test_a_q_that_is_wrong_beside_the_guess_gives_no_forbidden_token(
    bad: float, support: torch.Tensor | None, coupling: Verifier
) -> None:
    """Of a drafter's own q: NaN or less than zero for token 0, which p forbids, made 0 the correction of guess 3."""

    def draft(rows: int, gamma: int) -> Draft:
        tokens = torch.full((rows, gamma), 3)
        q = torch.tensor([bad, 0.5, 0.5] if support is not None else [bad, 0, 0, 0.5, 0.5, 0, 0, 0])
        return Draft(tokens, q.expand(rows, gamma, -1), tokens > 0, support=support)

    forbidden = Sampling(1.0, logit_bias={0: -torch.inf, 3: -torch.inf})
    requests = [Request(PROMPT, Stopping(1), seed=seed) for seed in range(60)]
    texts, trace = run(TARGET, Saying(draft), requests, 2, forbidden, coupling)
    assert all(record.drafted for record in trace.records)
    assert not {token for text in texts for token in text} & {0, 3}


@pytest.mark.parametrize("coupling", COUPLINGS[:2], ids=lambda v: v.name)
@pytest.mark.parametrize("once", [True, False])
def test_a_cascade_cuts_what_its_lower_drafter_cannot_mean(once: bool, coupling: Verifier) -> None:
    """The same inside a cascade, whose middle model verified a NaN and guessed token 0 for the target."""
    drafter = Cascade(Ngram(), ModelDrafter(TARGET.near(0.5)), once=once)
    requests = [Request(PROMPT, Stopping(1), seed=seed) for seed in range(1500)]
    texts, trace = run(TARGET, drafter, requests, 2, NO_FIVE, coupling, slots=500)
    session = TARGET.start(1, Shape(16, 1))
    session.admit(0, PROMPT)
    nothing = torch.zeros((1, 0), dtype=torch.int64)
    p = standardise(session.score(nothing), NO_FIVE, session.context, nothing)[0, 0]
    counts = Counter(text[0] for text in texts)
    seen = torch.tensor([counts[token] for token in range(8)]) / len(texts)
    # TV of 1500 draws over 7 tokens is 0.026 on average; above 0.1 once in 1e9 (McDiarmid: exp(-2 * 1500 * 0.074**2)).
    assert float((seen - p).abs().sum()) / 2 < 0.1
    assert trace.levels[0].accepted == 0


@pytest.mark.parametrize(
    "drafter",
    [
        Saying(outside),
        Fallback(Saying(outside), ModelDrafter(TARGET.near(0.3))),
        Fallback(Copying(shortest=4), Saying(outside)),
        Mixture(Saying(outside), ModelDrafter(TARGET.near(0.3)), cost=0.1),
        Cascade(Saying(outside), ModelDrafter(TARGET.near(0.3))),
    ],
    ids=["alone", "first", "second", "mixed", "lower"],
)
def test_tokens_that_are_not_proposed_are_never_looked_at(drafter: Drafter) -> None:
    """Ids outside the vocabulary behind the guesses did no harm alone, and ended drafting in compositions."""
    requests = [Request(PROMPT, Stopping(6), seed=seed) for seed in range(4)]
    texts, trace = run(TARGET, drafter, requests, 3, Sampling(1.0))
    assert trace.drafter_error is None
    assert texts == run(TARGET, Uniform(), requests, 2, Sampling(1.0))[0]
