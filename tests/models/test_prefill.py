"""Prompts that are prefilled together have the bits they have one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outrider.core.protocols import Admission, Shape, admit_all
from whole_numbers import BAD, WholeNumberModel

CAPACITY = 256
TAIL = torch.tensor([3, 1, 4])


def prompts(lengths: dict[int, int], shift: int) -> list[Admission]:
    """None of them holds the token whose embedding is not a number."""
    return [Admission(row, [(5 * i + row * shift) % BAD for i in range(count)]) for row, count in lengths.items()]


def seen(rounds: list[list[Admission]], together: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, hidden states and states of layers of the last round's rows, each admitted into the rows before."""
    session = WholeNumberModel().start(6, Shape(CAPACITY, 4, chunk=8))
    session.keep_states((0, -1))
    for admissions in rounds:
        if together:
            admit_all(session, admissions)
        else:
            for new in admissions:
                session.admit(new.row, new.prompt)
        assert session.hidden is not None and session.states is not None
        hidden, states = session.hidden.clone(), session.states.clone()
        logits = session.score(TAIL.expand(6, -1))
        session.commit(TAIL.expand(6, -1), torch.full((6,), 3))
    rows = sorted(new.row for new in rounds[-1])
    filled = [states[new.row, : max(1, len(new.prompt) - 1)].flatten() for new in rounds[-1]]  # zeros if nothing ran
    return logits[rows], hidden[rows], torch.cat(filled)


FIRST = {0: 30, 1: 90, 2: 1, 3: 2, 5: 17}
SECOND = {5: 3, 4: 20, 0: 45, 1: 1, 3: 60}


@pytest.mark.parametrize("rounds", [[FIRST], [FIRST, SECOND]], ids=["fresh", "used"])
def test_prompts_admitted_together_are_those_admitted_alone(rounds: list[dict[int, int]]) -> None:
    """Of a batch-invariant model, to the bit: logits behind the prompts, hidden states and the states of layers."""
    texts = [prompts(lengths, shift + 2) for shift, lengths in enumerate(rounds)]
    found, expected = seen(texts, True), seen(texts, False)
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all() and torch.equal(one, other)
    fresh = seen(texts[-1:], False)
    for one, other in zip(found, fresh, strict=True):
        assert torch.equal(one, other), "what a slot held before changes nothing"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("place", [40, 87])
def test_a_row_that_was_not_a_number_leaves_nothing_behind(place: int, together: bool) -> None:
    """Masked keys have weight zero, but zero times NaN is NaN: slots are cleared before prompts enter."""
    bad = prompts(FIRST, 2)
    bad[1] = Admission(1, [BAD if i == place else 2 for i in range(90)])
    texts = [bad, prompts(SECOND, 3)]
    found, fresh = seen(texts, together), seen(texts[1:], together)
    for one, other in zip(found, fresh, strict=True):
        assert torch.equal(one, other)


def test_a_bad_number_among_guesses_leaves_nothing_behind() -> None:
    """Guesses are written beyond the text's end; what enters the slot is cleared as far as they reached."""
    session = WholeNumberModel().start(2, Shape(CAPACITY, 4, chunk=8))
    admit_all(session, [Admission(0, [1, 2, 3]), Admission(1, [4, 5])])
    session.score(torch.full((2, 3), BAD))
    session.commit(torch.tensor([[7], [8]]), torch.ones(2, dtype=torch.int64))
    session.score(torch.full((2, 3), BAD))
    session.commit(torch.tensor([[7], [8]]), torch.ones(2, dtype=torch.int64))
    admit_all(session, [Admission(0, [6]), Admission(1, [9, 2, 2])])
    fresh = WholeNumberModel().start(2, Shape(CAPACITY, 4, chunk=8))
    admit_all(fresh, [Admission(0, [6]), Admission(1, [9, 2, 2])])
    assert torch.equal(session.score(TAIL.expand(2, -1)), fresh.score(TAIL.expand(2, -1)))


def test_prompts_of_several_rows_run_together() -> None:
    """And not where runs must be of constant shape, as in a model that is not batch-invariant."""
    model = WholeNumberModel()
    admissions = prompts({0: 15, 1: 16, 2: 17}, 1)
    admit_all(model.start(3, Shape(CAPACITY, 4, chunk=8)), admissions)
    assert model.backend.runs == [(3, 16)]
    model.backend.runs.clear()
    model.facts = replace(model.facts, batch_invariant=False)
    admit_all(model.start(3, Shape(CAPACITY, 4, chunk=8)), admissions)
    assert model.backend.runs == [(1, 8)] * 6


@pytest.mark.parametrize("invariant", [True, False])
def test_prompts_prefilled_between_steps_of_other_rows_are_those_prefilled_alone(invariant: bool) -> None:
    """Chunked prefill: a row that is being prefilled is an empty slot for the steps in between, even of bad guesses."""

    def started(steps: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        model = WholeNumberModel()
        model.facts = replace(model.facts, batch_invariant=invariant)
        session = model.start(6, Shape(CAPACITY, 4, chunk=8))
        session.keep_states((0, -1))
        session.admit(4, [2, 7, 1])
        first, taken = [], 0
        for _ in session.prefill_in_parts(prompts(FIRST, 2)):
            taken += 1
            if steps:
                guesses = torch.where(torch.arange(6)[:, None] == 4, TAIL, BAD)
                first.append(session.score(guesses)[4])
                session.commit(guesses[:, :2], torch.full((6,), 2))
        assert taken > 2
        assert session.hidden is not None and session.states is not None
        rows, hidden = list(FIRST), session.hidden.clone()
        states = torch.cat([session.states[row, : max(1, count - 1)].flatten() for row, count in FIRST.items()])
        logits = session.score(TAIL.expand(6, -1))
        return logits[rows], hidden[rows], states, torch.stack(first) if steps else torch.zeros(1)

    found, expected = started(True), started(False)
    for one, other in zip(found[:3], expected[:3], strict=True):
        assert one.isfinite().all() and torch.equal(one, other)
    assert found[3].isfinite().all(), "the row that goes on is not disturbed either"


def shared(rounds: list[list[list[int]]], share: bool) -> tuple[list[Tensor], int]:
    """Logits of every round's rows, and the tokens that were copied; rows of a round are released behind it."""
    session = WholeNumberModel().start(4, Shape(CAPACITY, 4, chunk=8))
    session.keep_states((0, -1))
    session.share_prefixes = share
    found = []
    for texts in rounds:
        admit_all(session, [Admission(row, text) for row, text in enumerate(texts)])
        assert session.hidden is not None and session.states is not None
        rows = len(texts)
        states = [session.states[row, : max(1, len(text) - 1)].flatten() for row, text in enumerate(texts)]
        found += [session.hidden[:rows].clone(), torch.cat(states), session.score(TAIL.expand(4, -1))[:rows]]
        session.commit(TAIL.expand(4, -1), torch.full((4,), 3))
        for row in range(rows):
            session.release(row)
    return found, session.reused


def test_prompts_that_begin_alike_are_copied_to_the_bit() -> None:
    """A prefix cache may change nothing: rows trade places, prompts end within another, and texts are prompts again."""
    long = [(7 * i + 3) % BAD for i in range(80)]
    other = [(5 * i + 1) % BAD for i in range(40)]
    rounds = [
        [long, other],
        [other[:30] + long[:9], long[:70] + other, long],
        [long + TAIL.tolist() + [2], other[:17], [1, 2, 3], long[:18]],
    ]
    expected, none = shared(rounds, share=False)
    found, reused = shared(rounds, share=True)
    assert none == 0 and reused >= 30 + 70 + 78 + 79 + 15
    for one, plain in zip(found, expected, strict=True):
        assert torch.equal(one, plain)


def test_steps_in_between_do_not_reach_prompts_that_were_copied() -> None:
    """Rows 0 and 2 hold most of their prompts and join a later run than row 1; row 3 takes steps all the while."""
    long, new = [(7 * i + 3) % BAD for i in range(80)], [(5 * i + 1) % BAD for i in range(150)]
    texts = [long[:70] + [1, 2], new, long]

    def started(share: bool) -> tuple[list[Tensor], int, int]:
        session, taken = WholeNumberModel().start(4, Shape(CAPACITY, 4, chunk=8)), 0
        session.keep_states((0, -1))
        session.share_prefixes = share
        session.admit(0, long)
        session.release(0)
        session.admit(3, [2, 7, 1])
        for _ in session.prefill_in_parts([Admission(row, text) for row, text in enumerate(texts)]):
            taken += 1
            if share:
                guesses = torch.where(torch.arange(4)[:, None] == 3, TAIL, BAD)
                assert session.score(guesses)[3].isfinite().all()
                session.commit(guesses[:, :2], torch.full((4,), 2))
        assert session.hidden is not None and session.states is not None
        states = [session.states[row, : len(text) - 1].flatten() for row, text in enumerate(texts)]
        hidden = session.hidden[:3].clone()
        return [torch.cat(states), hidden, session.score(TAIL.expand(4, -1))[:3]], session.reused, taken

    (found, reused, taken), (expected, none, _) = started(True), started(False)
    assert none == 0 and reused > 100 and taken > 1
    for one, plain in zip(found, expected, strict=True):
        assert torch.equal(one, plain)


def test_what_a_slot_has_not_run_is_not_copied() -> None:
    """A prefill that was left, and a row that failed, are empty slots."""
    session = WholeNumberModel().start(2, Shape(CAPACITY, 4, chunk=8))
    session.share_prefixes = True
    text = [(7 * i + 3) % BAD for i in range(80)]
    parts = session.prefill_in_parts([Admission(0, text)])
    next(parts)
    parts.close()
    session.admit(1, text)
    session.score(TAIL.expand(2, -1))
    session.commit(TAIL.expand(2, -1), torch.full((2,), 3))
    session.forget(1)
    session.admit(0, text)
    assert session.reused == 0


def test_memory_that_runs_out_while_a_prefix_is_copied_leaves_an_empty_slot() -> None:
    """Half a copy over an older text: the slot said it held the older one, and the next prompt like it copied both."""
    session = WholeNumberModel().start(3, Shape(CAPACITY, 4, chunk=8))
    session.share_prefixes = True
    first, second = ([(step * i + 3) % BAD for i in range(60)] for step in (7, 5))
    for row, text in enumerate((first, second)):
        session.admit(row, text)
        session.release(row)
    moved = session.cache.move

    def full(to: Tensor, source: Tensor, length: int) -> None:
        moved(to, source, length)
        raise MemoryError

    session.cache.move = full  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        session.admit(1, first)
    session.cache.move = moved  # type: ignore[method-assign]
    session.admit(2, second)
    plain = WholeNumberModel().start(3, Shape(CAPACITY, 4, chunk=8))
    plain.admit(2, second)
    assert torch.equal(session.score(TAIL.expand(3, -1))[2], plain.score(TAIL.expand(3, -1))[2])
