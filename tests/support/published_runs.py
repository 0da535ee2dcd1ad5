"""A published head run by the product's own sessions beside a tiny target: what it drafted, and from what."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from helpers import wrapped
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.drafters.published import PublishedDrafter

PROMPTS = ([3, 9, 4, 5, 7, 11, 30], [8, 2, 60])
FOLLOWS = ([12, 13, 14], [15, 16, 17])
GAMMA = 4


class Drafted(NamedTuple):
    """Of one row: its text, the target's states behind all tokens but the last, and its guesses with their q."""

    text: list[int]
    states: Tensor  # [T - 1, L, size]
    guesses: list[int]
    q: Tensor  # [G, N]


Logits = Callable[[list[int], Tensor, list[int]], Tensor]
"""Of a text, the states behind it and the guesses after it -> logits of all guesses [G, N]."""


def drafted(drafter: PublishedDrafter) -> list[Drafted]:
    """In a batch of two, after two commits that did not keep all guesses, drafts of ``GAMMA`` guesses."""
    model = wrapped("llama")
    drafter = drafter.beside(model.facts)
    shape = Shape(64, 6, chunk=4)
    target = model.start(len(PROMPTS), shape)
    session = drafter.start(len(PROMPTS), shape, target)
    for row, prompt in enumerate(PROMPTS):
        for part in (target, session):
            part.admit(row, prompt)
    noise, none = Noise(torch.arange(2)), torch.zeros((2, 0), dtype=torch.int64)
    target.score(none)
    for count in ([1, 1], [1, 2]):
        session.propose(GAMMA, Sampling(temperature=1.0), noise, target.context.positions(GAMMA + 1))
        for part in (target, session):
            part.commit(torch.tensor(FOLLOWS), torch.tensor(count))
        target.score(none)
    draft = session.propose(GAMMA, Sampling(temperature=1.0), noise, target.context.positions(GAMMA + 1))
    assert draft.probs is not None and target.states is not None
    trimmed = len(drafter.tokens) < model.vocab_size
    assert torch.equal(draft.support, drafter.tokens) if draft.support is not None else not trimmed
    found = []
    for row, length in enumerate(target.context.lengths.tolist()):
        text = target.context.tokens[row, :length].tolist()
        found.append(Drafted(text, target.states[row, : length - 1], draft.tokens[row].tolist(), draft.probs[row]))
    return found


def compare(drafter: PublishedDrafter, logits: Logits) -> float:
    """The largest difference between logits, which must not be above 1e-5."""
    worst = 0.0
    for text, states, guesses, q in drafted(PublishedDrafter(drafter.head, drafter.tokens, floor=0.0)):
        assert len(guesses) == GAMMA, "it was told not to stop"
        expected = logits(text, states, guesses).log_softmax(-1)
        torch.testing.assert_close(q.log(), expected, rtol=0, atol=1e-5)
        worst = max(worst, float((q.log() - expected).abs().max()))
    return worst
