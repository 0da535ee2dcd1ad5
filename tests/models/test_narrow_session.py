"""Sessions where bits are not at stake: the same logits from fewer tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny
from outrider.core.protocols import Shape
from outrider.models.cached_session import CachedSession
from outrider.models.transformers.model import HuggingFaceModel
from outrider.models.transformers.narrow_session import NarrowSession

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9], [33, 5, 33]]

EXPERTS = ("mixtral", "qwen3_moe")
"""Their grouped products are not there in float64."""


def both(family: str, rows: int) -> list[CachedSession]:
    """A session of constant shapes and a narrow one, with the same rows."""
    dtype = torch.float32 if family in EXPERTS else torch.float64
    model = HuggingFaceModel(tiny.build(family).to(dtype))
    source = 16 if model.encoder_decoder else 0
    made = [
        CachedSession(model, rows, Shape(64, 5, source)),
        NarrowSession(model, rows, Shape(64, 5, source, fixed=False)),
    ]
    for session in made:
        for row in range(rows):
            session.admit(row, PROMPTS[row], [7, 8, 9 + row] if model.encoder_decoder else None)
    return made


def same(sessions: list[CachedSession], tail: torch.Tensor) -> None:
    wide, narrow = (session.score(tail) for session in sessions)
    active = sessions[0].context.active
    torch.testing.assert_close(narrow[active], wide[active], **near(sessions[0]))


def near(session: CachedSession) -> dict[str, float]:
    """How near: softmax of these is in float32 whatever the model's dtype, and sums of more or fewer zeros differ."""
    limit = 1e-5 if session.model.config.model_type in ("bloom", "gemma2", *EXPERTS) else 1e-9
    return {"atol": limit, "rtol": limit}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", sorted(tiny.FAMILIES))
def test_the_same_logits(family: str, rows: int) -> None:
    """Catches prompts run together that see each other's padding, and attention over too little."""
    sessions = both(family, rows)
    nothing = torch.zeros((rows, 0), dtype=torch.int64)
    guesses = torch.randint(3, 90, (rows, 3))
    emitted = torch.randint(3, 90, (rows, 4))
    emitted[:, :2] = guesses[:, :2]
    for tail, tokens, count in (
        (nothing, torch.full((rows, 1), 12), torch.ones(rows, dtype=torch.int64)),
        (guesses, emitted, torch.tensor([3, 1, 2])[:rows]),
        (nothing, torch.full((rows, 1), 40), torch.ones(rows, dtype=torch.int64)),
    ):
        same(sessions, tail)
        for session in sessions:
            session.commit(tokens, count)
        if sessions[0].hidden is not None and sessions[1].hidden is not None:
            torch.testing.assert_close(sessions[1].hidden, sessions[0].hidden, **near(sessions[0]))
    for session in sessions:
        session.rewind(session.context.lengths - 2)
        session.score(nothing)
    same(sessions, guesses)


def test_a_row_that_joins_later() -> None:
    """Catches a slot used again that sees the row before it, or a row beside it that is run from the start again."""
    sessions = both("llama", 3)
    nothing = torch.zeros((3, 0), dtype=torch.int64)
    same(sessions, nothing)
    for session in sessions:
        session.commit(torch.full((3, 1), 12), torch.ones(3, dtype=torch.int64))
        session.release(1)
        session.admit(1, [60, 61, 62, 63])
    same(sessions, nothing)


def test_tokens_that_are_run() -> None:
    """Prompts were run one by one, sixty-four tokens at a time, and every later run had nine tokens a row."""
    model = HuggingFaceModel(tiny.build("llama"))
    shapes: list[Any] = []
    session = NarrowSession(model, 3, Shape(64, 9, fixed=False))
    hook = model.model.register_forward_pre_hook(
        lambda module, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    for row in range(3):
        session.admit(row, PROMPTS[row])
    for guesses in (0, 0, 2, 0):
        session.score(torch.zeros((3, guesses), dtype=torch.int64))
        session.commit(torch.full((3, guesses + 1), 7), torch.ones(3, dtype=torch.int64))
    hook.remove()
    assert shapes == [(3, 8), (3, 1), (3, 3), (3, 1)]


def test_the_place_for_nothing_is_cleared() -> None:
    """What runs in front of a short prompt is kept in the last place, and a NaN there got through the mask of the next
    row of that slot."""
    session = NarrowSession(HuggingFaceModel(tiny.build("llama")), 3, Shape(256, 5, fixed=False))
    for row, prompt in enumerate(PROMPTS):
        session.admit(row, prompt)
    for keys, values in session.cache.buffers():
        keys[1, :, -1], values[1, :, -1] = torch.nan, torch.nan
    session.release(1)
    session.admit(1, [60, 61, 62, 63])
    assert all(buffer[1].isfinite().all() for pair in session.cache.buffers() for buffer in pair)
