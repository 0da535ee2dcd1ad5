"""Rows whose guesses are known: told late, forked, and with tokens that the target does not have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outrider.core.noise import Noise
from outrider.core.protocols import Admission, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.drafters import Copying, ModelDrafter, Nothing
from outrider.drafters.by_request import ByRequest
from outrider.drafters.forced import Forced
from outrider.drafters.predicted import Predicted
from outrider.models.toy import ToyModel

MODEL, SHAPE, PROMPT = ToyModel(50, seed=1), Shape(64, 9), [1, 2, 3]
TEXT = list(range(10, 30))
KINDS = [Forced, Predicted]


def forced(output: Sequence[int]) -> list[int]:
    return TEXT[len(output) : len(output) + 4] if list(output) == TEXT[: len(output)] else []


def guessed(session: DraftSession, target: Session, gamma: int, rows: int = 1) -> list[list[int]]:
    noise = Noise(torch.zeros(rows, dtype=torch.int64))
    draft = session.propose(gamma, Sampling(), noise, target.context.positions(gamma + 1)[:1].expand(rows, -1))
    return [row[made].tolist() for row, made in zip(draft.tokens, draft.proposed, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_that_wakes_knows_what_was_written_meanwhile(kind: type[Forced | Predicted]) -> None:
    """It started at the beginning of the output, and every guess of the row was one that had been."""
    target = MODEL.start(1, SHAPE)
    safe = SafeDrafter(lambda: kind(Nothing()).start(1, SHAPE, target), 1, target, 9)
    safe.rest(True, again=False)
    target.admit(0, PROMPT)
    safe.admit_all([Admission(0, PROMPT, prediction=tuple(TEXT), forced=forced)])
    for token in TEXT[:3]:
        safe.prepare(0)
        assert guessed(safe, target, 0) == [[]]
        for part in (target, safe):
            part.commit(torch.tensor([[token]]), torch.tensor([1]))
    safe.prepare(4)
    assert guessed(safe, target, 4) == [TEXT[3:7]] and safe.error is None


@pytest.mark.parametrize("other", [Predicted(Copying()), Forced(Copying()), ByRequest({"copy": Copying()})])
def test_a_fork_leaves_the_original_alone(other: Drafter) -> None:
    """Both read the same notes: a token for the one moved the other's prediction."""
    target = MODEL.start(1, SHAPE)
    session = other.start(1, SHAPE, target)
    target.admit(0, PROMPT)
    session.admit_all([Admission(0, PROMPT, prediction=tuple(TEXT), forced=forced)])  # type: ignore[attr-defined]
    before = guessed(session, target, 3)
    fork = session.fork(torch.tensor([0, 0]))  # type: ignore[attr-defined]
    fork.commit(torch.tensor([[10], [7]]), torch.tensor([1, 1]))
    assert guessed(session, target, 3) == before
    assert len(guessed(fork, target, 2, rows=2)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_the_target_does_not_have_end_the_guesses(kind: type[Forced | Predicted]) -> None:
    """Beside a drafter with probabilities they were an index out of range; on a GPU that ends the process."""
    target = MODEL.start(2, SHAPE)
    session = kind(ModelDrafter(MODEL)).start(2, SHAPE, target)
    for row in (0, 1):
        target.admit(row, PROMPT)
    bad = Admission(0, PROMPT, prediction=(5, 99, 6), forced=lambda output: [5, 99, 6])
    session.admit_all([bad, Admission(1, PROMPT)])  # type: ignore[attr-defined]
    noise, at = Noise(torch.zeros(2, dtype=torch.int64)), target.context.positions(4)
    draft = session.propose(3, Sampling(temperature=1.0), noise, at).usable(50)
    found = draft.tokens[0][draft.proposed[0]].tolist()
    assert found[:1] == [5] and 99 not in found and bool(draft.proposed[1].all())
