"""A cascade changes no text: temperature 0 and Gumbel coupling to the token, maximal coupling row by row."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from helpers import Case, case, run, wrapped
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.drafters import Cascade, Copying, ModelDrafter, Ngram, Nothing
from outrider.trace import Trace, summarise

WARM = Sampling(1.0)


def drafter(wanted: Case, name: str) -> Drafter:
    """The target itself as the middle or lower model gives full acceptance there, another model rejections."""
    own, other = ModelDrafter(wanted.model, "self"), ModelDrafter(wrapped(wanted.family, seed=1), "other")
    return {
        "two": Cascade(Copying(shortest=1), other),
        "two, right": Cascade(other, own, guesses=2),
        "two, all right": Cascade(own, own, guesses=3),
        "once": Cascade(other, own, once=True, guesses=3),
        "three": Cascade(Cascade(Ngram(), other, guesses=2), own, guesses=3),
        "three, all right": Cascade(Cascade(own, own, guesses=2), own, guesses=2),
    }[name]


NAMES = ("two", "two, right", "two, all right", "once", "three", "three, all right")

COMBINATIONS = [
    *((family, name, 4) for family in ("llama", "t5") for name in NAMES),
    *(("llama", "two", 1), ("mistral", "three", 7), ("bart", "two, right", 7)),
]


@cache
def plain(family: str) -> list[list[int]]:
    wanted = case(family)
    return run(wanted.model, Nothing(), wanted.seeded(), 0, WARM)[0]


@pytest.mark.parametrize(("family", "name", "gamma"), COMBINATIONS)
def test_same_text(family: str, name: str, gamma: int) -> None:
    """Catches a middle or lower session out of step after guesses were taken back: rows are ragged and end apart."""
    wanted = case(family)
    for requests, sampling, expected in (
        (wanted.requests, Sampling(), wanted.expected),
        (wanted.seeded(), WARM, plain(family)),
    ):
        texts, trace = run(wanted.model, drafter(wanted, name), requests, gamma, sampling)
        assert trace.drafter_error is None
        assert texts == expected
        if name.endswith("all right"):  # every level guesses what the target draws, with the same noise
            assert summarise(trace).alpha_counted == 1.0
            assert all(level.alpha_counted == 1.0 for level in trace.levels)


@pytest.mark.parametrize("name", ["two", "three"])
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    """Catches runs of the middle model whose number or place follows from another row: alone, together, or queued."""
    wanted = case("llama")
    requests, guesser = wanted.seeded(), drafter(wanted, name)
    alone = [run(wanted.model, guesser, [r], 4, WARM, maximal_coupling, slots=1)[0][0] for r in requests]
    assert run(wanted.model, guesser, requests, 4, WARM, maximal_coupling)[0] == alone
    assert run(wanted.model, guesser, requests[::-1], 4, WARM, maximal_coupling, slots=2)[0] == alone[::-1]


PROMPTS = ([5, 6, 7, 8, 9, 5, 6], [20], [33, 34])


def start(family: str, texts: list[list[int]]) -> DraftSession:
    wanted = case(family)
    shape = Shape(capacity=64, width=6, source_capacity=8 if wanted.model.encoder_decoder else 0)
    session = drafter(wanted, "three").start(len(texts), shape, wanted.model.start(len(texts), shape))
    for row, text in enumerate(texts):
        session.admit(row, text, (3, 4, 5) if wanted.model.encoder_decoder else None)
    return session


def propose(session: DraftSession, texts: list[list[int]], gamma: int = 5) -> Draft:
    at = torch.tensor([len(t) for t in texts])[:, None] + torch.arange(gamma + 1)
    return session.propose(gamma, WARM, Noise(torch.arange(len(texts))).child("draft"), at)


def truth(draft: Draft, count: list[int], seed: int) -> Tensor:
    """Guesses kept, all but the last token of each row, which is another."""
    tokens = torch.nn.functional.pad(draft.tokens, (0, 1))
    last = torch.tensor(count)[:, None] - 1
    other = torch.randint(3, 90, last.shape, generator=torch.Generator().manual_seed(seed))
    return tokens.scatter(1, last, other)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_guesses_are_those_of_a_fresh_session(family: str) -> None:
    """Catches what stays of guesses that were taken back, at any level, after all, some or none were kept."""
    texts = [list(p) for p in PROMPTS]
    session = start(family, texts)
    for seed, count in enumerate(([6, 1, 3], [1, 6, 2], [4, 1, 6])):
        tokens = truth(propose(session, texts), count, seed)
        if seed == 1:
            propose(session, texts)  # asked twice without a commit between
        session.commit(tokens, torch.tensor(count))
        for row, n in enumerate(count):
            texts[row] += tokens[row, :n].tolist()
    got, fresh = propose(session, texts), propose(start(family, texts), texts)
    assert got.probs is not None and fresh.probs is not None
    torch.testing.assert_close(got.probs, fresh.probs, atol=1e-4, rtol=1e-3)
    assert torch.equal(got.tokens, fresh.tokens)
    order = torch.tensor([2, 0, 1])
    session.select(order)
    session.commit(got.tokens[order][:, :0], torch.zeros(3, dtype=torch.int64))
    turned = session.propose(
        5, WARM, Noise(order).child("draft"), torch.tensor([len(texts[i]) for i in order])[:, None] + torch.arange(6)
    )
    assert torch.equal(turned.tokens, got.tokens[order])


def test_levels_are_counted(tmp_path: object) -> None:
    """Catches statistics of a level that are another's, count idle rows, or get lost on the way to a file."""
    wanted = case("llama")
    guesser = drafter(wanted, "three")
    _, trace = run(wanted.model, guesser, wanted.seeded(), 5, WARM, maximal_coupling)
    upper, below = trace.levels
    assert (upper.model, upper.drafter, below.model, below.drafter) == ("self", "ngram>other", "other", "ngram")
    for level in trace.levels:
        assert level.accepted <= level.examined <= level.drafted
        assert 1 <= level.tokens_per_run <= 4
    made = upper.accepted + upper.runs  # tokens of the middle model: all guesses, and those beyond gamma
    assert made >= sum(len(record.drafted) for record in trace.records)
    assert below.runs <= upper.drafted + upper.runs * 3
    assert summarise(trace).levels == trace.levels == summarise(trace.for_row(0)).levels
    path = tmp_path / "trace.jsonl"  # type: ignore[operator]
    trace.save(path)
    assert Trace.load(path).levels == trace.levels
