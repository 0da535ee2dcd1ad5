"""Copies that a mixture has checked: a first guess of the second drafter, and the rest of the copy where both agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import run
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Mixture, ModelDrafter
from outrider.drafters.base import ContextSession
from outrider.drafters.weighing import AGREED, SECOND
from outrider.models.toy import ToyModel

MODEL = ToyModel(12, seed=3, sharpness=2.0)
SHORT = [1, 2, 7, 8, 5, 6, 3, 1, 2]  # ends with two tokens seen before: the copy is 7, 8, 5, 6


class Says:
    """Guesses one token again and again, and stops where it is told to."""

    name = "says"

    def __init__(self, token: int, ends: bool = True) -> None:
        self.token, self.ends = token, ends

    def start(self, rows: int, shape: Shape, target: Any) -> Any:
        return SaysSession(self, rows, shape, target)


class SaysSession(ContextSession):
    ends_behind: Tensor | None = None

    def __init__(self, drafter: Says, rows: int, shape: Shape, target: Any) -> None:
        super().__init__(rows, shape, target)
        self.drafter = drafter

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        ends = self.ends_behind is not None and bool((self.ends_behind == self.drafter.token).any())
        tokens = torch.full_like(at[:, : 1 if ends and self.drafter.ends else gamma], self.drafter.token)
        return Draft(tokens, None, torch.ones_like(tokens, dtype=torch.bool))


def started(second: Any, on_cpu: bool = True) -> tuple[Any, Any]:
    shape = Shape(capacity=64, width=5)
    target = MODEL.start(1, shape)
    session: Any = Mixture(Copying(), second, 0.05).start(1, shape, target)
    session.on_cpu = on_cpu
    target.admit(0, SHORT)
    session.admit(0, SHORT)
    return session, target


def propose(session: Any, target: Any) -> list[int]:
    draft = session.propose(4, Sampling(), Noise(torch.arange(1)), target.context.positions(5))
    guesses: list[int] = draft.tokens[0, draft.proposed[0]].tolist()
    return guesses


@pytest.mark.parametrize("on_cpu", [True, False], ids=["host", "device"])
def test_the_copy_follows_a_first_guess_that_agrees(on_cpu: bool) -> None:
    """A doubtful copy was taken where the head would have been right, or left where the head said the same."""
    session, target = started(Says(7), on_cpu)
    assert propose(session, target) == [7, 8, 5, 6] and session.agreed.tolist() == [True]
    if on_cpu:
        assert session.spent == 1, "the second drafter has no more to say"
    session, target = started(Says(9), on_cpu)
    assert propose(session, target)[0] == 9 and session.agreed.tolist() == [False]


@pytest.mark.parametrize("on_cpu", [True, False], ids=["host", "device"])
def test_each_is_judged_by_its_own_guesses(on_cpu: bool) -> None:
    """Of 7, 8, 5, 6 the text follows two: the second drafter's one was right, and of the copy behind it one of two."""
    session, target = started(Says(7), on_cpu)
    propose(session, target)
    session.commit(torch.tensor([[7, 8, 0, 0, 0]]), torch.tensor([3]))
    seen = {kind: (float(session.kept[0, kind]), float(session.tried[0, kind])) for kind in (0, AGREED, SECOND)}
    assert seen == {0: (2, 3), AGREED: (1, 2), SECOND: (1, 1)}


@pytest.mark.parametrize("on_cpu", [True, False], ids=["host", "device"])
def test_a_copy_that_was_not_used_is_learnt_from(on_cpu: bool) -> None:
    """It is a function of the text alone. Else one that failed would be doubted until it is taken and fails again."""
    session, target = started(Says(9), on_cpu)
    propose(session, target)
    session.commit(torch.tensor([[7, 8, 5, 0, 0]]), torch.tensor([3]))
    assert (float(session.kept[0, 0]), float(session.tried[0, 0])) == (3, 3)
    assert (float(session.kept[0, SECOND]), float(session.tried[0, SECOND])) == (0, 1)


def test_the_distribution_holds_where_copies_are_checked() -> None:
    """Frequencies of the next tokens against the target's own; catches a first guess that counts as sure (q = 1)
    once the copy agrees with it."""
    model = ToyModel(6, order=1, seed=5, sharpness=1.5)
    drafter = Mixture(Copying(), ModelDrafter(model.near(0.5)), cost=0.05)
    prompt, texts = (1, 2, 3, 4, 0, 1, 2), 2000
    requests = [Request(prompt, Stopping(3), seed=seed) for seed in range(texts)]
    found = run(model, drafter, requests, 4, Sampling(1.0), maximal_coupling, slots=64)[0]
    plain = run(model, drafter, requests, 0, Sampling(1.0), maximal_coupling, slots=64)[0]
    for place in (0, 1, 2):
        one, two = (
            torch.bincount(torch.tensor([text[place] for text in each]), minlength=6) for each in (found, plain)
        )
        spread = (one + two).clamp(min=1).sqrt()
        assert float(((one - two).abs() / spread).max()) < 4.5, f"token {place}: {one.tolist()} and {two.tolist()}"
