"""A feature head for a few rows on a CPU: each row is drafted for by compiled code, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

from helpers import wrapped
from outrider.core.noise import Noise, Silence
from outrider.core.protocols import Draft, Shape
from outrider.core.sampling import Sampling, SamplingByRow
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.drafters.head.backends.row_by_row import RowByRowBackend
from outrider.drafters.head.choice import FEW_ROWS, choose_for_one_row
from outrider.drafters.head.session import HeadSession

if choose_for_one_row().backend != "numba":
    pytest.skip("this CPU has no products of bytes", allow_module_level=True)

pytestmark = pytest.mark.cpu_paths

CONFIG = HeadConfig("feature", 32, 16, 1, layers=(1, -1), heads=(2, 1))
PROMPTS = ([3, 4, 5], [7, 8, 9, 10, 11, 12], [6, 6], [5, 9, 13, 2])
SHAPE = Shape(64, 6)
GREEDY, DRAWN, FILTERED = Sampling(temperature=0.0), Sampling(temperature=1.0), Sampling(temperature=1.0, top_p=0.8)


@pytest.fixture(scope="module")
def drafter() -> Iterator[HeadDrafter]:
    torch.manual_seed(0)
    yield HeadDrafter(Head(CONFIG), torch.arange(0, 40, 2), floor=0.0)


class Rows:
    """A target and a head beside it, with a seed for every row that goes where the row goes."""

    def __init__(self, drafter: HeadDrafter, prompts: Sequence[Sequence[int]]) -> None:
        self.target = wrapped("llama").start(len(prompts), SHAPE)
        session = drafter.start(len(prompts), SHAPE, self.target)
        assert isinstance(session, HeadSession)
        self.head, self.seeds = session, torch.zeros(len(prompts), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            self.admit(row, prompt, seed=row)
        self.step(torch.full((len(prompts),), 4))

    def admit(self, row: int, prompt: Sequence[int], seed: int) -> None:
        self.seeds[row] = seed
        for part in (self.target, self.head):
            part.admit(row, prompt)

    def step(self, tokens: Tensor) -> None:
        """Commit one token of every row."""
        self.target.score(torch.zeros((len(tokens), 0), dtype=torch.int64))
        for part in (self.target, self.head):
            part.commit(tokens[:, None], torch.ones_like(tokens))

    def select(self, *rows: int) -> None:
        order = torch.tensor(rows)
        self.seeds = self.seeds[order]
        for part in (self.target, self.head):
            part.select(order)

    def draft(self, sampling: Sampling, gamma: int = 4, caps: Sequence[int] | None = None) -> Draft:
        self.head.caps = None if caps is None else torch.tensor(caps)
        return self.head.propose(gamma, sampling, Noise(self.seeds), self.target.context.positions(gamma + 1))


def same(found: Draft, row: int, alone: Draft) -> None:
    assert found.tokens[row].tolist() == alone.tokens[0].tolist()
    assert (found.probs is None) == (alone.probs is None)
    if found.probs is not None and alone.probs is not None:
        assert torch.equal(found.probs[row], alone.probs[0])


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, FILTERED], ids=["greedy", "drawn", "filtered"])
def test_a_row_of_a_few_drafts_as_it_would_alone(drafter: HeadDrafter, sampling: Sampling) -> None:
    """Few rows were torch's, three times as slow for each guess, and drafted otherwise than a row alone."""
    few = Rows(drafter, PROMPTS[:FEW_ROWS])
    assert isinstance(few.head.backend, RowByRowBackend)
    drafts = [few.draft(sampling)]
    few.step(torch.tensor([2, 9, 4, 7])[:FEW_ROWS])
    drafts.append(few.draft(sampling))
    for row, prompt in enumerate(PROMPTS[:FEW_ROWS]):
        alone = Rows(drafter, [prompt])
        alone.seeds[0] = row
        same(drafts[0], row, alone.draft(sampling))
        alone.step(torch.tensor([[2, 9, 4, 7][row]]))
        same(drafts[1], row, alone.draft(sampling))


def test_rows_that_change_places_leave_and_join_keep_their_own_texts(drafter: HeadDrafter) -> None:
    """Catches a KV cache that stays behind when its row moves, and one that shows the text before."""
    moved, steady = (Rows(drafter, PROMPTS[:3]) for _ in range(2))
    for each in (moved, steady):
        each.draft(DRAWN)  # all that is so far has been read
        each.step(torch.tensor([2, 9, 4]))
    moved.select(2, 0, 1)
    expected, found = steady.draft(DRAWN), moved.draft(DRAWN)
    assert found.probs is not None and expected.probs is not None
    assert torch.equal(found.tokens[[1, 2, 0]], expected.tokens)
    assert torch.equal(found.probs[[1, 2, 0]], expected.probs)
    moved.select(0, 2)  # the middle one leaves
    assert isinstance(moved.head.backend, RowByRowBackend)
    assert torch.equal(moved.draft(DRAWN).tokens[[1, 0]], expected.tokens[1:])
    moved.target.release(0)
    moved.head.release(0)
    assert moved.draft(DRAWN).proposed.tolist() == [[False] * 4, [True] * 4]
    moved.admit(0, PROMPTS[3], seed=5)
    fresh = Rows(drafter, [PROMPTS[3]])
    fresh.seeds[0] = 5
    moved.step(torch.tensor([4, 9]))
    same(moved.draft(DRAWN), 0, fresh.draft(DRAWN))


def test_a_row_that_may_have_no_guess_costs_nothing(drafter: HeadDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a draft that reads the text and runs the layers for a row whose guesses are another drafter's."""
    few = Rows(drafter, PROMPTS[:3])
    backend: Any = few.head.backend
    ran: list[int] = []
    for one in backend.rows:

        def counted(*given: Any, own: Any = one, guesses: Any = one.guesses, **told: Any) -> Any:
            ran.append(own.row)
            return guesses(*given, **told)

        monkeypatch.setattr(one, "guesses", counted)
    found = few.draft(DRAWN, caps=[0, 4, 2])
    assert ran == [1, 2] and found.proposed.sum(1).tolist() == [0, 4, 2]
    assert few.draft(DRAWN, caps=[0, 0, 0]).tokens.shape[1] == 0 and ran == [1, 2]


def test_rows_that_are_copied_or_forked_stay_compiled(drafter: HeadDrafter) -> None:
    """Beam search copied rows and looked ahead of the target in torch, for longer than a run of the target took."""
    few = Rows(drafter, PROMPTS[:2])
    few.select(1, 1)
    expected = few.draft(DRAWN, 3)
    assert few.head.backend.name == "numba" and torch.equal(expected.tokens[0], expected.tokens[1])
    alone = Rows(drafter, PROMPTS[1:2])
    assert torch.equal(alone.draft(GREEDY).tokens[0], few.draft(GREEDY).tokens[1])


@pytest.mark.parametrize("asked_before", [0, 1, 3], ids=["unread", "one guess", "three guesses"])
def test_a_fork_goes_on_behind_its_own_guesses(drafter: HeadDrafter, asked_before: int) -> None:
    """Catches a fork that forgets what was committed to it, shares a KV cache, or stands at another guess."""
    few = Rows(drafter, PROMPTS[:2])
    expected = Rows(drafter, PROMPTS[:2]).draft(GREEDY).tokens  # [2, 4]: each guess behind those before it
    if asked_before:
        few.draft(GREEDY, asked_before)
    at = torch.zeros((3, 2), dtype=torch.int64)
    fork = few.head.fork(torch.tensor([1, 0, 1]))
    for k in range(3):
        found = fork.propose(1, GREEDY, Silence(at[:, 0]), at).tokens[:, 0]
        assert found[:2].tolist() == expected[[1, 0], k].tolist()
        taken = torch.stack([expected[1, k], expected[0, k], torch.tensor(0)])  # the third goes another way
        fork.commit(taken[:, None], torch.ones(3, dtype=torch.int64))
    fork.select(torch.tensor([1, 1, 0]))
    found = fork.propose(1, GREEDY, Silence(at[:, 0]), at).tokens[:, 0]
    assert found.tolist() == expected[[0, 0, 1], 3].tolist()
    assert torch.equal(few.draft(GREEDY).tokens, expected), "what a fork reads must not show in the rows it came from"


def test_rows_may_have_a_temperature_each(drafter: HeadDrafter) -> None:
    """Requests of other options share a batch: each row's guesses are those of its own temperature."""
    few = Rows(drafter, PROMPTS[:3])
    warm = Sampling(temperature=0.5)
    found = few.draft(SamplingByRow.of([(GREEDY, (0,)), (DRAWN, (1,)), (warm, (2,))]))
    greedy, drawn, other = (Rows(drafter, PROMPTS[:3]).draft(each) for each in (GREEDY, DRAWN, warm))
    assert torch.equal(found.tokens, torch.stack([greedy.tokens[0], drawn.tokens[1], other.tokens[2]]))
    assert found.probs is not None and drawn.probs is not None and other.probs is not None
    assert torch.equal(found.probs[1], drawn.probs[1]) and torch.equal(found.probs[2], other.probs[2])
    assert found.of_tokens()[0].tolist() == [1.0] * 4


PENALISED = Sampling(temperature=0.7, frequency_penalty=0.5)


@pytest.mark.parametrize("times", [1, 5], ids=["row by row", "all rows together"])
def test_rows_may_have_options_of_which_some_are_not_compiled(drafter: HeadDrafter, times: int) -> None:
    """One row with a filter or a penalty had all rows draft by torch, over the whole vocabulary: other bits of q, by
    which a text under maximal coupling changed with its neighbours."""
    prompts = PROMPTS * times
    kinds = (GREEDY, DRAWN, FILTERED, PENALISED)
    groups = [(options, tuple(range(first, len(prompts), len(kinds)))) for first, options in enumerate(kinds)]
    rows = Rows(drafter, prompts)
    assert isinstance(rows.head.backend, RowByRowBackend) == (times == 1)
    found = rows.draft(SamplingByRow.of(groups)).dense(rows.target.vocab_size)
    for options, members in groups:
        alike = Rows(drafter, prompts).draft(options).dense(rows.target.vocab_size)
        for row in members:
            assert torch.equal(found.tokens[row], alike.tokens[row]) and torch.equal(found.proposed, alike.proposed)
            assert found.probs is not None
            if alike.probs is None:
                assert torch.equal(found.probs[row].argmax(-1), alike.tokens[row])
            else:
                assert torch.equal(found.probs[row], alike.probs[row])


def test_rows_left_by_the_compiled_draft_end_by_themselves(drafter: HeadDrafter) -> None:
    """Catches guesses for a row that may have none, and rows that are drafted for twice."""
    rows = Rows(drafter, PROMPTS)
    mixed = SamplingByRow.of([(DRAWN, (0, 1)), (FILTERED, (2, 3))])
    assert rows.draft(mixed, caps=[2, 0, 4, 0]).proposed.sum(1).tolist() == [2, 0, 4, 0]
    assert rows.draft(mixed, caps=[0, 3, 0, 0]).proposed.sum(1).tolist() == [0, 3, 0, 0]
