"""Compositions say what their parts say: costs, prices, caps and time spent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.core import host_sync
from outrider.core.abilities import Abilities
from outrider.core.noise import Noise
from outrider.core.prices import Ladder, Prices
from outrider.core.protocols import Draft, Drafter, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits
from outrider.drafters import Cascade, Copying, Fallback, Mixture, ModelDrafter, Standardised, Uniform
from outrider.drafters.fallback import joined
from outrider.models.toy import ToyModel
from outrider.planning.policies import Setting

MODEL = ToyModel(12, seed=3)
REPEATS, NEW = [1, 2, 3, 4, 1, 2, 3], [1, 2, 3, 4, 5, 6]


class Dear(ModelDrafter):
    traits = DrafterTraits(cost=0.4, gamma=4)


DEAR = Dear(MODEL.near(0.5), floor=0.01)


def session(drafter: Drafter, *prompts: list[int]) -> Any:
    shape = Shape(capacity=64, width=5)
    target = MODEL.start(len(prompts), shape)
    made = drafter.start(len(prompts), shape, target)
    for row, prompt in enumerate(prompts):
        made.admit(row, prompt)
    return made


def asked(made: Any, *lengths: int) -> Any:
    at = torch.tensor(lengths)[:, None] + torch.arange(5)
    return made.propose(4, Sampling(1.0), Noise(torch.arange(len(lengths))), at)


@pytest.mark.parametrize(
    "drafter",
    [
        DEAR, Fallback(Copying(), DEAR), Fallback(DEAR, Copying()), Cascade(Copying(), DEAR), Standardised(DEAR, 0.5),
        Mixture(Copying(), DEAR), Fallback(Copying(), Cascade(Copying(), DEAR)),
    ],
    ids=lambda d: d.name,
)  # fmt: skip
def test_a_composition_is_planned_at_what_its_parts_declare(drafter: Drafter) -> None:
    """Fallback and Cascade said nothing, and were planned at a small head's cost."""
    assert Setting(1, 4, drafter, None).declared.draft == 0.4


def test_prices_and_caps_reach_both_parts_of_a_fallback() -> None:
    """A drafter that ends its drafts by prices was never told them inside a fallback."""
    made = session(Fallback(Standardised(Mixture(Copying(), DEAR), 0.5), DEAR), NEW)
    prices = Prices(Ladder((1.0,) * 5, (0.0,) * 5), [1.0], [0.5])
    Abilities(made).price(prices)
    Abilities(made).cap(torch.tensor([2]))
    asked(made, len(NEW))
    (mixture,), second = made.sessions[0].children(), made.sessions[1]
    assert mixture.prices is prices is second.prices
    assert mixture.caps.tolist() == [2]


def test_a_fallback_tells_what_took_time() -> None:
    """The guesses of both drafters take time, whichever are used; those of a mixture's copy take none."""
    made = session(Fallback(Mixture(Copying(), DEAR, cost=5.0), Uniform()), REPEATS, NEW)
    asked(made, len(REPEATS), len(NEW))
    assert Abilities(made).spent == 4
    made.caps = torch.tensor([4, 0])  # nobody waits for the second drafter
    asked(made, len(REPEATS), len(NEW))
    assert made.spent == 0


def test_a_fork_asks_as_its_parent_does() -> None:
    """A fork of a fallback forgot to ask whether anybody needs the second drafter."""
    made = session(Fallback(Copying(), Uniform()), REPEATS)
    fork = made.fork(torch.tensor([0]))
    fork.sessions[1].propose = None  # must not be called: the first has a guess
    assert asked(fork, len(REPEATS)).proposed.all()


@pytest.mark.parametrize("copied", [[[4, 6, 8], [2, 2, 0]], [[4, 5, 11], [0, 7, 1]]], ids=["known", "other tokens"])
def test_a_copy_beside_a_draft_of_some_tokens_needs_no_table_of_all(
    copied: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that copied beside one that drafted made three tables of the whole vocabulary, every step: 3 ms."""
    support = torch.tensor([0, 2, 4, 6, 8])
    q = torch.rand((2, 3, 5), generator=torch.Generator().manual_seed(1))
    first = Draft(torch.tensor(copied), None, torch.tensor([[True, True, False], [True, True, True]]))
    second = Draft(support[q.argmax(-1)], q / q.sum(-1, keepdim=True), torch.tensor([[True] * 3] * 2), support=support)
    for rows in ([[True], [False]], [[False], [True]], [[True], [True]], [[False], [False]]):
        use_first = torch.tensor(rows)
        found = joined(first, second, use_first, 12)
        with monkeypatch.context() as patch:
            patch.setattr(host_sync, "on_cpu", False)
            expected = joined(first, second, use_first, 12)
        assert found.support is not None and len(found.support) <= 5 + 5 and expected.support is None
        assert torch.equal(found.support, found.support.sort().values)
        assert torch.equal(found.tokens, expected.tokens) and torch.equal(found.proposed, expected.proposed)
        here, there = found.dense(12).probs, expected.probs
        assert here is not None and there is not None
        assert torch.equal(here[found.proposed], there[found.proposed])
