"""What a run of a model costs by the number of tokens in it, measured once for a machine and kept.

Kept, because with a seed and maximal coupling the text depends on how many guesses were made: planning must not
depend on what else the machine does while a text is written.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from outrider.core.model_facts import facts_of
from outrider.core.protocols import LanguageModel, Shape
from outrider.runtime import timer

_WIDTHS = (1, 2, 3, 4, 5, 7, 9, 12, 16, 24, 32)
"""Up to what rows of a batch have together: tokens cost the same whichever row they are in."""

_TURNS, _MOST_TURNS, _SECONDS = 4, 32, 1.5
"""How often each is timed: at least, and at most while all of it takes less than so many seconds. It is kept, even if
the machine was busy then."""

NOMINAL = {1: 1.0, 2: 1.2, 3: 1.4, 5: 1.8, 9: 3.0}
"""Where nothing can be kept: between what was measured on CPUs with narrow and with wide vectors."""

_STEP = 0.05
"""Costs are rounded to this: less would be noise."""


@torch.no_grad()
def measured(model: LanguageModel) -> dict[int, float]:
    """By width, in runs of one token: of several turns the quickest counts."""
    session = model.start(1, Shape(256, max(_WIDTHS), fixed=False, source_capacity=64))
    text = [token % model.vocab_size for token in range(3, 67)]
    session.admit(0, text, text[:16] if facts_of(model).encoder_decoder else None)
    quickest = dict.fromkeys(_WIDTHS, float("inf"))
    for _ in turns():
        for width in _WIDTHS:
            guesses = torch.zeros((1, width - 1), dtype=torch.int64)
            began = timer.now()
            session.score(guesses)
            quickest[width] = min(quickest[width], timer.now() - began)
    return monotone({width: taken / quickest[1] for width, taken in quickest.items()})


def turns() -> Iterator[int]:
    """Turns to time something in."""
    began, turn = timer.now(), 0
    while turn < _TURNS or (turn < _MOST_TURNS and timer.now() - began < _SECONDS):
        yield turn
        turn += 1


def monotone(costs: dict[int, float]) -> dict[int, float]:
    """Rounded, and never falling: a wider run that seems quicker was lucky."""
    found: dict[int, float] = {}
    highest = 1.0
    for width, cost in sorted(costs.items()):
        highest = max(highest, round(cost / _STEP) * _STEP)
        found[width] = round(highest, 2)
    return found
