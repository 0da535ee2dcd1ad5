"""Choices of one prompt: it is run in one row and copied to the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outrider.core.protocols import Admission, Shape, admit_all
from outrider.models.shared_prefixes import repeated_prompts
from whole_numbers import BAD, WholeNumberModel

CAPACITY = 256
TAIL = torch.tensor([3, 1, 4])


def test_equal_prompts_are_found() -> None:
    new = [Admission(4, [1, 2]), Admission(0, (1, 2)), Admission(1, [2, 1]), Admission(2, [1, 2]), Admission(3, [2, 1])]
    assert repeated_prompts(new) == {4: [0, 2], 1: [3]}
    assert repeated_prompts([Admission(0, [1], source=[5]), Admission(1, [1], source=[6])]) == {}


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("invariant", [True, False])
def test_a_prompt_of_several_rows_is_run_once_and_copied_to_the_bit(invariant: bool, steps: bool) -> None:
    """Choices of one prompt: each of n rows ran it, in slots that hold texts before it and beside rows that step."""

    def started(rows: list[Admission], model: WholeNumberModel) -> tuple[Tensor, Tensor, Tensor]:
        session = model.start(6, Shape(CAPACITY, 4, chunk=8))
        session.keep_states((0, -1))
        admit_all(session, [Admission(row, [5] * (9 + 16 * row)) for row in range(6)])
        session.score(torch.full((6, 3), BAD))
        session.commit(TAIL.expand(6, -1), torch.full((6,), 3))
        for row in range(5):
            session.release(row)
        model.backend.runs.clear()
        for _ in session.prefill_in_parts(rows, steps):
            if steps:
                session.score(torch.where(torch.arange(6)[:, None] == 5, TAIL, BAD))
                session.commit(TAIL.expand(6, -1), torch.full((6,), 1))
        assert session.hidden is not None and session.states is not None
        hidden, states = session.hidden.clone(), session.states[:5, :40].clone()
        return session.score(TAIL.expand(6, -1))[:5], hidden[:5], states

    long, one = [(7 * i + 3) % BAD for i in range(41)], [5]
    texts = [long, one, long, one, long]
    model = WholeNumberModel()
    model.facts = replace(model.facts, batch_invariant=invariant)
    found = started([Admission(row, text) for row, text in enumerate(texts)], model)
    ran = sum(rows * width for rows, width in model.backend.runs if width > 4)
    assert ran == len(long) - 1
    for row, text in enumerate(texts):
        alone = started([Admission(row, text)], model)
        for together, apart in zip(found, alone, strict=True):
            assert torch.equal(together[row], apart[row])
