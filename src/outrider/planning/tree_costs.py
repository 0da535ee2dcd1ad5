"""What a place in a tree of guesses must be worth: by what another row of the target's run costs. Math only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.prices import Ladder

_PATIENCE = 8.0
"""Plain runs that the speed of a row counts as, before it has shown any."""


def floors(ladder: Ladder, rate: float) -> list[float]:
    """The least chance of being kept at which node 1, 2, ... of a tree brings what its time brings elsewhere.

    Costs have steps: a node that does not pay by itself may pay together with those behind it. Which these are may not
    be looked at (see ``decoding/tree_growth.py``), so what counts is what they cost on average.
    """
    steps = ladder.steps
    most = len(steps) - 1
    return [
        rate * min((steps[last] - steps[node - 1]) / (last - node + 1) for last in range(node, most + 1))
        for node in range(1, most + 1)
    ]


@dataclass
class TreeCosts:
    """The costs of trees for one row, and how fast it has been, from its own committed text alone."""

    ladder: Ladder  # of runs with so many nodes
    tokens: float = 0.0
    time: float = 0.0  # in plain runs

    @property
    def floors(self) -> Sequence[float]:
        return floors(self.ladder, max(1.0, (_PATIENCE + self.tokens) / (_PATIENCE + self.time)))

    def learn(self, nodes: int, tokens: int) -> None:
        """A run with so many nodes has given so many tokens."""
        self.tokens += tokens
        self.time += self.ladder.steps[nodes] if nodes else 1.0
