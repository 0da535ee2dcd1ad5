"""Tables that the host looks up make the guesses of the tables over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import host_sync
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Shape
from outrider.core.sampling import Sampling, SamplingByRow
from outrider.drafters import Ngram, NgramTable
from outrider.drafters.base import TableSession
from outrider.models.toy import ToyModel

SIZE = 9
TOKENS = st.lists(st.integers(0, SIZE - 3), min_size=1, max_size=12)
TEXTS = st.lists(TOKENS, min_size=1, max_size=3)


def proposed(
    drafter: Ngram, texts: Sequence[Sequence[int]], sampling: Sampling, on_host: bool, gamma: int = 4
) -> Draft:
    """Guesses by the host's way, or by the one of devices; the last row is not in use."""
    shape = Shape(capacity=32, width=gamma + 1)
    session = drafter.start(len(texts) + 1, shape, ToyModel(SIZE).start(len(texts) + 1, shape))
    for row, text in enumerate(texts):
        session.admit(row, text)
    at = torch.tensor([*map(len, texts), 1])[:, None] + torch.arange(gamma + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sync, "on_cpu", on_host)
        return session.propose(gamma, sampling, Noise(torch.arange(len(texts) + 1)), at)


def same(drafter: Ngram, texts: Sequence[Sequence[int]], sampling: Sampling) -> None:
    host, device = (proposed(drafter, texts, sampling, on_host) for on_host in (True, False))
    guesses = [
        [[t for t, p in zip(row, flags, strict=True) if p] for row, flags in
         zip(draft.tokens.tolist(), draft.proposed.tolist(), strict=True)]
        for draft in (host, device)
    ]  # fmt: skip
    assert guesses[0] == guesses[1]
    if sampling.greedy:
        assert host.probs is None
        return
    made = host.proposed
    if made.any():
        dense, other = host.dense(SIZE).probs, device.probs
        assert dense is not None and other is not None
        wide = dense.shape[1]
        torch.testing.assert_close(dense[made], other[:, :wide][made], rtol=1e-5, atol=1e-7)


@given(TEXTS, TEXTS, st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_a_counted_table(corpus: list[list[int]], texts: list[list[int]], order: int, temperature: float) -> None:
    """Catches another back-off, a key of other tokens, ties that go to another token, another q, and guesses in a row
    that is not in use."""
    same(Ngram(NgramTable.fit(corpus, SIZE - 2, order=order)), texts, Sampling(temperature))


@given(TEXTS, st.integers(1, 5), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_counts_of_the_rows_own_text(texts: list[list[int]], order: int, temperature: float) -> None:
    """Catches guesses that count as evidence, and contexts that end among them or not."""
    same(Ngram(order=order), texts, Sampling(temperature))


def test_q_does_not_depend_on_other_rows() -> None:
    """Under maximal coupling a q that is another number beside other rows is another text."""
    drafter = Ngram(NgramTable.fit([[1, 2, 3, 1, 2, 4, 1, 2, 2], [5, 6, 5, 5]], SIZE, order=2))
    alone = proposed(drafter, [[1, 2]], Sampling(0.7), True).dense(SIZE)
    beside = proposed(drafter, [[1, 2], [5]], Sampling(0.7), True).dense(SIZE)
    assert alone.probs is not None and beside.probs is not None
    assert torch.equal(alone.probs[0], beside.probs[0]) and torch.equal(alone.tokens[0], beside.tokens[0])


OWN = Sampling(0.7), Sampling(1.0), Sampling(0.7, top_k=2), Sampling(0.0), Sampling(0.7, frequency_penalty=1.0)


@pytest.mark.parametrize("other", OWN, ids=["0.7", "1", "top-k", "greedy", "penalty"])
@pytest.mark.parametrize("own", OWN, ids=["0.7", "1", "top-k", "greedy", "penalty"])
def test_q_does_not_depend_on_the_options_of_other_rows(own: Sampling, other: Sampling) -> None:
    """Beside a row with other options q came from another arithmetic, so text under maximal coupling could differ."""
    drafter = Ngram(NgramTable.fit([[1, 2, 3, 1, 2, 4, 1, 2, 2, 1, 2, 3, 2, 4, 4, 2, 5], [5, 6, 5, 5]], SIZE, order=2))
    alone = proposed(drafter, [[1, 2]], own, True)
    by_row = SamplingByRow.of([(own, (0,)), (other, (1,))])
    beside = proposed(drafter, [[1, 2], [5]], by_row, True)
    wide = alone.tokens.shape[1]
    assert torch.equal(alone.tokens[0], beside.tokens[0, :wide]) and beside.proposed[0].sum() == alone.proposed[0].sum()
    if own.greedy:
        return
    mine, its = alone.dense(SIZE).probs, beside.dense(SIZE).probs
    assert mine is not None and its is not None and torch.equal(mine[0], its[0, :wide])
    same(drafter, [[1, 2], [5]], by_row)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_table_of_the_vocabulary_is_made(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every guess of a bigram took a table, its logarithm, a softmax and a race of the whole vocabulary: 0.88 of a
    target run of t5-ende, where the paper has none at all."""
    monkeypatch.setattr(TableSession, "weights", lambda *given: pytest.fail("weights of the vocabulary"))
    monkeypatch.setattr("outrider.drafters.ngram._TableSession.weights", lambda *given: pytest.fail("weights"))
    drafter = Ngram(NgramTable.fit([[1, 2, 3, 1, 2, 4, 1]], SIZE, order=2))
    draft = proposed(drafter, [[1]], Sampling(temperature), True)
    assert draft.proposed[0].all() and (temperature == 0 or draft.support is not None)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.0, repetition_penalty=2.0),
        Sampling(0.0, logit_bias={4: 3.0}),
        Sampling(1.0, top_k=1),
        Sampling(1.0, min_p=0.9),
    ],
    ids=["penalty", "bias", "top-k", "min-p"],
)
def test_other_options_are_honoured(sampling: Sampling) -> None:
    """Catches penalties, bias and filters that the quick way leaves out."""
    drafter = Ngram(NgramTable.fit([[1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 3]], SIZE, order=2))
    host, device = (proposed(drafter, [[1, 2]], sampling, on_host) for on_host in (True, False))
    assert torch.equal(host.tokens, device.tokens) and host.probs is not None and device.probs is not None
    assert torch.equal(host.probs, device.probs)
