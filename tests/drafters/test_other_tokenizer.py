"""A draft model with another tokenizer: its guesses are those of the model on the same text, whatever was committed."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import tiny
from helpers import case, run, wrapped
from outrider.core.noise import Noise, Silence
from outrider.core.protocols import Draft, DraftSession, Shape, Verifier
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Cascade, Copying, Fallback, ModelDrafter, Nothing
from outrider.drafters.other_tokenizer import OtherTokenizerDrafter
from outrider.models.toy import ToyModel
from outrider.models.transformers.model import HuggingFaceModel
from outrider.testing import check_drafter
from two_tokenizers import of_letters, of_ninety, of_twelve

PROMPTS = ([5, 40, 7, 61, 9], [20], [33, 34])
WARM, COLD = Sampling(1.0), Sampling()


@cache
def other() -> OtherTokenizerDrafter:
    return OtherTokenizerDrafter(wrapped("llama", seed=1), of_ninety())


@cache
def twin() -> OtherTokenizerDrafter:
    """The target itself with its tokens in another order: every guess is right."""
    shared, order = of_letters(tiny.VOCAB)
    network = tiny.build("llama")
    for table in (network.get_input_embeddings(), network.get_output_embeddings()):
        table.weight = torch.nn.Parameter(table.weight[order].clone())
    return OtherTokenizerDrafter(HuggingFaceModel(network), shared, "twin")


def start(texts: list[list[int]]) -> DraftSession:
    shape = Shape(capacity=64, width=6)
    session = other().start(len(texts), shape, wrapped("llama").start(len(texts), shape))
    for row, text in enumerate(texts):
        session.admit(row, text)
    return session


def propose(session: DraftSession, texts: list[list[int]], sampling: Sampling = WARM, gamma: int = 4) -> Draft:
    at = torch.tensor([len(text) for text in texts])[:, None] + torch.arange(gamma + 1)
    seeds = torch.arange(len(texts))
    return session.propose(gamma, sampling, Silence(seeds) if sampling.greedy else Noise(seeds), at)


def others(seed: int, rows: int = len(PROMPTS), count: int = 5) -> Tensor:
    return torch.randint(1, 94, (rows, count), generator=torch.Generator().manual_seed(seed))


def assert_like_fresh(session: DraftSession, texts: list[list[int]]) -> None:
    for sampling in (WARM, COLD):
        got, fresh = propose(session, texts, sampling), propose(start(texts), texts, sampling)
        assert torch.equal(got.proposed, fresh.proposed) and bool(got.proposed.any())
        assert torch.equal(got.tokens[got.proposed], fresh.tokens[got.proposed])
        if got.probs is not None and fresh.probs is not None:
            torch.testing.assert_close(got.probs[got.proposed], fresh.probs[got.proposed], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("asked", [WARM, COLD, None], ids=["warm", "cold", "not asked"])
def test_commits_that_contradict_every_guess(asked: Sampling | None) -> None:
    """Catches a stale cache: the encoding of a text changes at its end, and guesses that were wrong stand there."""
    texts = [list(prompt) for prompt in PROMPTS]
    session = start(texts)
    for seed, count in enumerate(([5, 3, 1], [1, 5, 2], [2, 2, 5], [1, 1, 1])):
        if asked is not None:
            propose(session, texts, asked)
        tokens = others(seed)
        session.commit(tokens, torch.tensor(count))
        for row, n in enumerate(count):
            texts[row] += tokens[row, :n].tolist()
    assert_like_fresh(session, texts)


def test_a_long_silence() -> None:
    """Catches tokens beyond those that the draft's session is told at once."""
    texts = [list(prompt) for prompt in PROMPTS]
    session = start(texts)
    for seed in range(8):
        tokens = others(seed)
        session.commit(tokens, torch.tensor([5, 1, 0]))
        for row, n in enumerate((5, 1, 0)):
            texts[row] += tokens[row, :n].tolist()
    assert_like_fresh(session, texts)


def test_rows_come_and_go() -> None:
    """Catches a new row that is taken for the one before it, beside guesses of its neighbours."""
    texts = [list(prompt) for prompt in PROMPTS]
    session = start(texts)
    draft = propose(session, texts)
    session.release(1)
    session.commit(draft.tokens, torch.tensor([2, 2, 1]))
    texts[0] += draft.tokens[0, :2].tolist()
    texts[2] += draft.tokens[2, :1].tolist()
    idle = propose(session, texts)
    assert not bool(idle.proposed[1].any()) and bool(idle.proposed.any())
    texts[1] = [44, 45, 46, 47]
    session.admit(1, texts[1])
    assert_like_fresh(session, texts)


def test_tokens_taken_back() -> None:
    """Catches an encoding that goes on behind tokens that are no longer there."""
    texts = [list(prompt) for prompt in PROMPTS]
    session = start(texts)
    propose(session, texts)
    session.commit(others(1), torch.tensor([5, 3, 1]))
    session.rewind(torch.tensor([len(text) + 1 for text in texts]))
    for row, text in enumerate(texts):
        text.append(int(others(1)[row, 0]))
    assert_like_fresh(session, texts)


def test_selected_and_forked_rows() -> None:
    """Catches rows that share what one of them writes."""
    texts = [list(prompt) for prompt in PROMPTS]
    session = start(texts)
    propose(session, texts)
    rows = torch.tensor([2, 0, 0, 1])
    fork = session.fork(rows)  # type: ignore[attr-defined]
    tokens = others(3, rows=4)
    fork.commit(tokens, torch.tensor([1, 2, 5, 3]))
    assert_like_fresh(session, texts)
    forked = [texts[old] + tokens[new, :n].tolist() for new, old, n in ((0, 2, 1), (1, 0, 2), (2, 0, 5), (3, 1, 3))]
    assert_like_fresh(fork, forked)
    session.select(torch.tensor([1, 1, 0]))
    session.commit(others(4), torch.tensor([1, 2, 3]))
    assert_like_fresh(session, [texts[o] + others(4)[n, : n + 1].tolist() for n, o in enumerate((1, 1, 0))])


def test_q_is_the_drafts_own_over_the_shared_tokens() -> None:
    """Catches q that is not renormalised, columns in another order, and a text encoded by the target's tokenizer."""
    drafter, text = other(), [5, 1, 2, 28, 61, 1, 3]  # "ab" and "ac" are one token each
    shared = drafter.shared
    encoded = shared.draft.encode(shared.target.written(text).decode())
    assert [shared.target.ids.get(shared.draft.pieces[token]) for token in encoded] != text, "no difference is tested"
    got = propose(start([text]), [text], Sampling(0.7), gamma=2)
    assert got.probs is not None and got.support is not None
    session = drafter.model.start(1, Shape(capacity=64, width=6))
    session.admit(0, encoded)
    columns = list(shared.draft_ids)
    first = dict(zip(shared.target_ids, shared.draft_ids, strict=True))[int(got.tokens[0, 0])]
    logits = session.score(torch.tensor([[first]]))[0]  # [2, V]
    wanted = (logits[:, columns] / 0.7).softmax(-1)
    assert got.support.tolist() == list(shared.target_ids)
    torch.testing.assert_close(got.probs[0], wanted, atol=1e-5, rtol=1e-4)


def test_a_choice_that_is_not_shared_ends_the_draft() -> None:
    """Catches guesses made where the draft means something that the target cannot write in one token."""
    shared = of_twelve()
    session = ToyModel(11, seed=9).start(1, Shape(64, 4))
    drafting = OtherTokenizerDrafter(ToyModel(11, seed=9), shared).start(
        1, Shape(64, 4), ToyModel(12).start(1, Shape(64, 4))
    )
    seen = set()
    for text in ([0], [1, 2], [3, 0], [9], [5, 5], [11, 2]):
        session.admit(0, shared.draft.encode(shared.target.written(text).decode()))
        drafting.admit(0, text)
        own = int(session.score(torch.zeros((1, 0), dtype=torch.int64))[0, 0].argmax())
        assert bool(propose(drafting, [text], WARM, 1).proposed.any()) == (own in shared.draft_ids)
        seen.add(own in shared.draft_ids)
    assert seen == {True, False}, "one of the two cases is not tested"


@pytest.mark.parametrize("model", ["toy", "llama"])
def test_the_contract(model: str) -> None:
    """Catches a q that was not drawn from, rows mixed up, forks that show, and text that changes."""
    if model == "toy":
        check_drafter(OtherTokenizerDrafter(ToyModel(11, seed=9), of_twelve()))
    else:
        check_drafter(other(), wrapped("llama"))


REQUESTS = [
    Request((20, 31, 7, 8), Stopping(12), seed=3),
    Request((64,), Stopping(17), seed=4),
    Request((0, 5, 0, 5, 0), Stopping(5), seed=5),
    Request((90, 91), Stopping(14), seed=6),
]


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(
    ("sampling", "verifier"),
    [(COLD, gumbel_coupling), (WARM, gumbel_coupling), (WARM, maximal_coupling)],
    ids=["greedy", "gumbel", "maximal"],
)
def test_a_twin_is_always_right(sampling: Sampling, verifier: Verifier, slots: int) -> None:
    """Catches a wrong map, an encoding one token off, and a cache that is another text's: each costs guesses."""
    model = wrapped("llama")
    texts, trace = run(model, twin(), REQUESTS, 3, sampling, verifier, slots=slots)
    assert trace.drafter_error is None
    examined = [(len(record.drafted), record.accepted) for record in trace.records if record.drafted]
    assert len(examined) >= 8 and all(drafted == kept for drafted, kept in examined)
    if verifier is gumbel_coupling:
        assert texts == run(model, Nothing(), REQUESTS, 0, sampling, verifier)[0]


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("sampling", [COLD, WARM, Sampling(1.0, repetition_penalty=1.3)], ids=["0", "1", "penalty"])
def test_the_text_is_the_targets(sampling: Sampling, slots: int) -> None:
    """Catches a text that depends on the draft, alone or beside others, with rows that join and leave."""
    model, plain = wrapped("llama"), Nothing()
    texts, trace = run(model, other(), REQUESTS, 4, sampling, slots=slots)
    assert trace.drafter_error is None and any(record.drafted for record in trace.records)
    assert texts == run(model, plain, REQUESTS, 0, sampling)[0]


def test_beside_and_below_other_drafters() -> None:
    """Catches a session that falls behind where another one drafts, or that cannot take tokens back."""
    wanted = case("llama")
    for drafter in (
        Fallback(Copying(shortest=1), other()),
        Cascade(other(), ModelDrafter(wanted.model, "self"), guesses=3),
    ):
        texts, trace = run(wanted.model, drafter, wanted.requests, 4)
        assert trace.drafter_error is None
        assert texts == wanted.expected


def test_texts_too_long_for_the_draft() -> None:
    """Catches a draft that is run beyond its limit, and rows that are left out because of a neighbour."""
    shared, target = of_twelve(), ToyModel(12, seed=3)
    draft = ToyModel(11, seed=9)
    draft.max_length = 24
    drafter = OtherTokenizerDrafter(draft, shared)
    requests = [Request((0,) * 22, Stopping(12), 1), Request((1,), Stopping(6), 2)]
    texts, trace = run(target, drafter, requests, 3, WARM, width=4)
    assert trace.drafter_error is None
    assert texts == run(target, Nothing(), requests, 0, WARM, width=4)[0]
    drafted = {record.row for record in trace.records if record.drafted}
    assert drafted == {1}


def test_a_token_that_options_lift_is_proposed_as_it_was_drawn() -> None:
    """A processor may give weight to a token that the draft has not: the next shared one was proposed in its place,
    under a q that was not its own."""
    texts = [list(prompt) for prompt in PROMPTS]
    support = propose(start(texts), texts).support
    assert support is not None
    lifted = next(token for token in range(wrapped("llama").vocab_size) if token not in set(support.tolist()))

    def lift(ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(-1, torch.tensor([lifted]), 1e4)

    draft = propose(start(texts), texts, Sampling(1.0, processors=(lift,)))
    first = draft.proposed[:, 0]
    assert bool(first.any()) and draft.probs is not None and draft.support is None
    assert (draft.tokens[first, 0] == lifted).all() and (draft.probs[first, 0, lifted] > 0.99).all()
    assert not bool(draft.proposed[:, 1:].any())  # the draft cannot go on behind it
