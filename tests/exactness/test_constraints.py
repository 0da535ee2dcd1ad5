"""Constraints are asked behind texts that plain decoding could reach, and nowhere else.

A grammar or a trie may have no answer behind its own end, nor behind a text that it does not allow.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers import run, wrapped
from outrider.beam.search import BeamDecoder
from outrider.core.protocols import Drafter, LanguageModel, Verifier
from outrider.core.sampling import Sampling
from outrider.core.verification.block import block_coupling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Cascade, Copying, Fallback, Mixture, ModelDrafter, Ngram, Nothing, Suffix, Uniform
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.models.toy import ToyModel
from outrider.trace import Trace

TARGET = ToyModel(8, seed=1)
PROMPT = (2, 3, 6, 2, 3)  # with an end token: a prompt's own end nothing
END = frozenset({2})
FOLLOWS = {3: (6, 7), 6: (7, 1, 2), 7: (1, 6, 2), 1: (6, 2)}
COUPLINGS = (maximal_coupling, block_coupling, gumbel_coupling)


def grammar(ids: Tensor, scores: Tensor) -> Tensor:
    """Raises KeyError behind the end token 2, and behind 0, 4 and 5, which it never allows."""
    allowed = list(FOLLOWS[int(ids[0, -1])])
    assert int(ids[0, -1]) == 3 or int(ids[0, -1]) in FOLLOWS[int(ids[0, -2])]
    return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor(allowed), scores[:, allowed])


def blind(*known: int) -> ModelDrafter:
    """A draft model that gives these tokens only: some, or none, of what the grammar allows."""
    model = TARGET.near(0.5)
    model.table[:, [token for token in range(8) if token not in known]] = -torch.inf
    return ModelDrafter(model)


def always(token: int) -> ModelDrafter:
    model = TARGET.near(0.5)
    model.table[:, token] += 4
    return ModelDrafter(model)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: ModelDrafter(TARGET.near(0.5)),
    "model that ends": lambda: always(2),
    "model that knows nothing allowed": lambda: blind(0, 4, 5),
    "model that knows the end only": lambda: blind(2),
    "copy": lambda: Copying(shortest=1, longest=3),
    "ngram": lambda: Ngram(),
    "suffix": lambda: Suffix(shortest=1, floor=0),
    "uniform": lambda: Uniform(),
    "fallback": lambda: Fallback(blind(4), always(2)),
    "mixture": lambda: Mixture(Copying(shortest=1), always(2), 0.01),
    "cascade": lambda: Cascade(Uniform(), always(2), guesses=2),
    "cascade over nothing allowed": lambda: Cascade(Uniform(), blind(0, 5), guesses=2),
    "cascade over the end only": lambda: Cascade(blind(0), blind(2), guesses=1),
    "cascade of nothing allowed": lambda: Cascade(blind(0, 4), ModelDrafter(TARGET.near(0.5)), once=True),
}


@pytest.mark.parametrize("coupling", COUPLINGS, ids=lambda v: v.name)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_constraint_is_asked_where_plain_decoding_could_ask(name: str, coupling: Verifier) -> None:
    """Guesses went on behind an end token, or behind a token "drawn" from a q that is no number, and the constraint,
    asked there, failed the call."""
    requests = [Request(PROMPT, Stopping(6, END), seed=seed) for seed in range(16)]
    for temperature in (0.0, 1.0) if coupling.shares_noise else (1.0,):
        sampling = Sampling(temperature, processors=(grammar,))
        texts, trace = run(TARGET, DRAFTERS[name](), requests, 4, sampling, coupling, slots=16)
        assert trace.drafter_error is None
        if coupling.shares_noise:
            assert texts == run(TARGET, Nothing(), requests, 0, sampling, coupling, slots=16)[0]
    assert any(len(text) < 6 for text in texts), "no text ended: nothing was tested"


def head() -> tuple[LanguageModel, Drafter]:
    """A head that likes every second token of a tiny llama."""
    torch.manual_seed(3)
    made = Head(HeadConfig("feature", 32, 64, 2, layers=(1, -1), heads=(2, 1), window=8, gamma=4))
    return wrapped("llama"), HeadDrafter(made, torch.arange(0, wrapped("llama").vocab_size, 2), floor=0.0)


@pytest.mark.parametrize("allowed", [(4, 6, 8), (5, 7, 9)], ids=["known", "unknown to the head"])
def test_a_head_asks_no_more(allowed: tuple[int, ...]) -> None:
    """The same for heads: 8 ends the text, and an odd token is none that the head knows."""
    model, drafter = head()
    end = allowed[-1]

    def strict(ids: Tensor, scores: Tensor) -> Tensor:
        last = int(ids[0, -1])
        assert last == 3 or last in allowed[:-1], f"asked behind {last}"
        return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor(allowed), scores[:, list(allowed)])

    requests = [Request((3, 3), Stopping(12, frozenset({end})), seed=seed) for seed in range(12)]
    sampling = Sampling(2.0, processors=(strict,))
    texts, trace = run(model, drafter, requests, 4, sampling)
    assert trace.drafter_error is None
    assert texts == run(model, Nothing(), requests, 0, sampling)[0]


@pytest.mark.parametrize("name", ["model that ends", "uniform", "ngram"])
def test_beams_ask_no_more(name: str) -> None:
    """The rows of a beam search are padded with token 0, be it the end token."""
    end = frozenset({0})
    follows = {token: tuple(0 if x == 2 else x for x in after) for token, after in FOLLOWS.items()}

    def strict(ids: Tensor, scores: Tensor) -> Tensor:
        allowed = list(follows[int(ids[0, -1])])
        return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor(allowed), scores[:, allowed])

    def search(drafter: Drafter) -> list[tuple[int, ...]]:
        decoder = Decoder(TARGET, drafter, gumbel_coupling, Sampling(processors=(strict,)), 3, width=4)
        found = BeamDecoder(decoder, 3, 5).search(Request(PROMPT, Stopping(6, end)), Trace("beam"))
        return [hypothesis.tokens for hypothesis in found]

    assert search(DRAFTERS[name]()) == search(Nothing())


def test_the_ends_of_all_requests_are_named() -> None:
    """A token that ends one text and not another is not an end: the other's constraint is asked behind it."""
    seen = set()

    def noting(ids: Tensor, scores: Tensor) -> Tensor:
        seen.add(int(ids[0, -1]))
        return scores

    ends = (frozenset({1, 2}), frozenset({2}))
    requests = [Request((3,), Stopping(8, end), seed=seed) for seed in range(10) for end in ends]
    run(TARGET, Uniform(), requests, 3, Sampling(1.0, processors=(noting,)))
    assert 1 in seen and 2 not in seen
