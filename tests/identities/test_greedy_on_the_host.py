"""A greedy step of rows on a CPU, in plain numbers: what the formulas for any device give, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from identities.test_on_the_host import as_on_a_gpu
from outrider.core.algorithm import Step, splice
from outrider.core.context import Context
from outrider.core.noise import Silence
from outrider.core.protocols import Draft
from outrider.core.sampling import Sampling, choices
from outrider.core.verification.gumbel import gumbel_coupling

ROWS, GUESSES, SIZE = 5, 3, 40


def logits() -> Tensor:
    """With ties, and rows where some position leaves no choice."""
    found = torch.randn((ROWS, GUESSES + 1, SIZE), generator=torch.Generator().manual_seed(1)).round(decimals=1)
    found[1, 2, 7] = torch.nan
    found[2, 0] = -torch.inf
    found[3, 1, 4] = torch.inf
    return found


def draft(kept: int) -> Draft:
    """Guesses that agree with the target for ``kept`` positions; rows propose 3, 2, 1, 0, 3 of them."""
    tokens = logits().argmax(-1)[:, :GUESSES].clone()
    tokens[:, kept:] += 1
    proposed = torch.arange(GUESSES) < torch.tensor([3, 2, 1, 0, 3])[:, None]
    return Draft(tokens % SIZE, None, proposed)


def step(guesses: Draft) -> tuple[Tensor, ...]:
    count = guesses.tokens.shape[1] + 1
    p = choices(logits()[:, :count], Sampling(), Context(ROWS, 16, torch.device("cpu")), guesses.tokens)
    verdict = gumbel_coupling(p, guesses, Silence(torch.zeros(ROWS)), torch.zeros((ROWS, count), dtype=torch.int64))
    emitted, taken = splice(guesses.tokens, verdict)
    done = Step(emitted, taken, guesses, guesses.overlap(p), p)
    return p.tokens, p.weight, verdict.accepted, verdict.token, emitted, taken, done.overlap, done.finite


def both(work: Callable[[], tuple[Any, ...]]) -> None:
    found = work()
    with as_on_a_gpu():
        expected = work()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kept", range(GUESSES + 1))
def test_a_greedy_step(kept: int) -> None:
    both(lambda: step(draft(kept)))


def test_a_greedy_step_without_guesses() -> None:
    both(lambda: step(draft(0).narrow(0)))


def test_what_is_committed() -> None:
    """Rows of different lengths, one of them empty, with tokens behind those that count."""

    def committed() -> tuple[Tensor, ...]:
        context = Context(3, 12, torch.device("cpu"))
        context.admit_all([0, 2], [[4, 5, 6], [7]])
        context.write_scratch(torch.tensor([[1, 2], [3, 4], [5, 6]]), offset=1)
        context.write_scratch(torch.zeros((3, 0), dtype=torch.int64))
        added = context.append(torch.tensor([[8, 9], [8, 9], [8, 9]]), torch.tensor([2, 2, 1]))
        return added, context.tokens, context.lengths, context.positions(3, offset=-1)

    both(committed)
