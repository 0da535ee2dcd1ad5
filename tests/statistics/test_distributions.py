"""Sampled text follows the target's distribution, whoever drafts: chi-square, false-failure rate 1e-9 each.

Every test states the smallest total-variation distance it finds (``detects``) and fails as too weak otherwise.
"""

from __future__ import annotations

import pytest
import torch
from distributions import PROMPT, RAGGED, SAMPLINGS, TARGET, VOCAB, check_distribution, drafters

from outrider.core.algorithm import speculative_step
from outrider.core.noise import Noise
from outrider.core.protocols import Shape, Verifier
from outrider.core.sampling import Sampling, standardise
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters.forced import Forced
from outrider.testing import assert_same_distribution, counts_of, exact_distribution
from outrider.trace import Trace

BOTH = pytest.mark.parametrize("verifier", [maximal_coupling, gumbel_coupling], ids=lambda v: v.name)


@pytest.mark.parametrize("name", drafters())
def test_maximal_coupling_keeps_the_distribution_for_every_drafter(name: str) -> None:
    """Catches a bias in acceptance or residual, for good, bad, point-mass, ragged and missing drafts."""
    check_distribution(drafters()[name], maximal_coupling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@BOTH
def test_distribution_with_every_option(verifier: Verifier, sampling: str) -> None:
    """Catches options applied to p and q differently, twice, or not at each drafted prefix."""
    check_distribution(drafters()["near"], verifier, SAMPLINGS[sampling], detects=0.022)


@pytest.mark.parametrize("name", ["far", "copy"])
def test_gumbel_coupling_keeps_the_distribution(name: str) -> None:
    """Catches races that are not exponential, or draws that do not follow their weights."""
    check_distribution(drafters()[name], gumbel_coupling)


@BOTH
def test_joint_distribution_of_three_tokens(verifier: Verifier) -> None:
    """Catches noise used twice along a row: each token alone may be right and the joint distribution wrong."""
    check_distribution(drafters()["near"], verifier, rows=180_000, length=3, gamma=1, detects=0.02)


def test_ragged_batch() -> None:
    """Catches noise or residuals taken at the wrong place when rows have different lengths and drafts."""
    check_distribution(drafters()["copy"], maximal_coupling, prompts=RAGGED, rows=150_000, detects=0.02)


def first_step(verifier: Verifier, rows: int = 100_000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How many rows keep their first guess, and p and q there."""
    sampling, shape = Sampling(1.0), Shape(capacity=32, width=4)
    target = TARGET.start(1, shape)
    drafting = drafters()["near"].start(1, shape, target)
    for session in (target, drafting):
        session.admit(0, PROMPT)
    p = standardise(target.score(torch.zeros((1, 0), dtype=torch.int64)), sampling, target.context, target.tail)[0, 0]
    for session in (target, drafting):
        session.select(torch.zeros(rows, dtype=torch.int64))
    step = speculative_step(target, drafting, verifier, sampling, Noise(torch.arange(rows)), 1)
    kept = (step.count > 1).sum()
    assert step.draft.probs is not None
    return torch.stack([kept, rows - kept]), p, step.draft.probs[0, 0]


def test_maximal_coupling_accepts_as_often_as_the_distributions_overlap() -> None:
    """Catches a rule that keeps the distribution but wastes guesses: Theorem 3.5, it is the sum of min(p, q)."""
    counts, p, q = first_step(maximal_coupling)
    beta = torch.minimum(p, q).sum()
    assert_same_distribution(counts, torch.stack([beta, 1 - beta]), detects=0.02)


def test_gumbel_coupling_accepts_as_often_as_it_should() -> None:
    """Catches a draft that does not share the target's noise: Daliri et al. 2024 give the rate in closed form."""
    counts, p, q = first_step(gumbel_coupling)
    rate = (1 / torch.maximum(p / p[:, None], q / q[:, None]).sum(-1)).sum()
    assert_same_distribution(counts, torch.stack([rate, 1 - rate]), detects=0.02)


@BOTH
def test_distribution_through_the_decoder(verifier: Verifier) -> None:
    """Catches what only the loop can spoil: seeds lost, slots reused with old noise, tokens of other rows."""
    count = 8_000
    decoder = Decoder(TARGET, drafters()["near"], verifier, Sampling(1.0), 2, width=3, slots=2_000)
    requests = [Request(PROMPT, Stopping(2), seed) for seed in range(count)]
    tokens = {event.index: event.row.tokens for event in decoder.stream(requests, Trace())}
    counts = counts_of(torch.tensor([tokens[i] for i in range(count)]), VOCAB)
    assert_same_distribution(counts, exact_distribution(TARGET, Sampling(1.0), PROMPT, 2), detects=0.08)


@BOTH
@pytest.mark.parametrize("other", ["near", "copy"])
def test_forced_guesses_keep_the_distribution(verifier: Verifier, other: str) -> None:
    """Catches a token that a constraint names and that is taken instead of drawn: it is a guess as any."""
    count = 8_000
    decoder = Decoder(TARGET, Forced(drafters()[other]), verifier, Sampling(1.0), 2, width=3, slots=2_000)
    some = [lambda output: [1, 2][len(output) :], lambda output: [0] if not output else [], None]
    requests = [Request(PROMPT, Stopping(2), seed, forced=some[seed % 3]) for seed in range(count)]
    trace = Trace()
    tokens = {event.index: event.row.tokens for event in decoder.stream(requests, trace)}
    first = {record.row: record.drafted for record in trace.records if record.position == len(PROMPT)}
    assert all(first[seed][:1] == (1,) for seed in range(0, count, 3)), "what is forced was not guessed"
    counts = counts_of(torch.tensor([tokens[i] for i in range(count)]), VOCAB)
    assert_same_distribution(counts, exact_distribution(TARGET, Sampling(1.0), PROMPT, 2), detects=0.08)
