"""States of a model's layers that runs gave on a CPU, written where they belong when somebody reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_RUNS, _TOKENS = 64, 512
"""Whose states wait at most: of so many runs, and of so many tokens in all."""


class LateStates:
    """What runs gave, in their order.

    A few copies in a row take a tenth of what they take one after each run, which leaves Python's code in no cache; and
    while nobody guesses, nobody reads them.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[range, NDArray[Any], NDArray[Any]]] = []
        self.tokens = 0

    def add(self, states: Tensor, rows: range, positions: Tensor, given: Tensor) -> None:
        """``given`` [B, W, L, size] belongs to these rows of ``states`` at ``positions`` [B, W]."""
        self.waiting.append((rows, positions.numpy(), given.numpy()))
        self.tokens += positions.numel()
        if len(self.waiting) >= _RUNS or self.tokens >= _TOKENS:
            self.write(states)

    def write(self, states: Tensor) -> None:
        """Like keys and values, stale places are written over."""
        to = states.numpy()  # by numpy: torch would wake its threads, which take a core from the engine's
        for rows, places, given in self.waiting:
            first, width = int(places[0, 0]), places.shape[1]
            if len(rows) == 1 and (places[0] == np.arange(first, first + width)).all():
                to[rows.start, first : first + width] = given[0]
            else:
                to[np.arange(rows.start, rows.stop)[:, None], places] = given
        self.waiting.clear()
        self.tokens = 0
