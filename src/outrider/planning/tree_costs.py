"""What a place in a tree of guesses is worth, and what it must be, as a token more in the run costs. Math only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.prices import Ladder

_PATIENCE = 8.0
"""Plain runs that the speed of a row counts as, before it has shown any."""


_SAMPLED = 0.5, 8.0
"""``Outlook.beyond`` above temperature 0, before a row has shown it, and examined positions that this counts as."""

_OTHERS = 0.5
"""How often a further candidate is kept there, over its probability, where the first is not."""


@dataclass(frozen=True)
class Outlook:
    """How often candidates are kept, by the largest probabilities of the q they are drawn from.

    At temperature 0 the token of probability q is the target's about as often as q says. Where tokens are drawn, a
    first candidate is kept more often than q's largest probability, be it ever so unlikely itself, and others less.
    """

    beyond: float = 0.0  # of what the largest probability leaves to one, the share that a first candidate is kept
    others: float = 1.0

    def chances(self, largest: Sequence[float]) -> list[float]:
        """Of the first candidate, the second ...: that it is kept and none before it. Falling, as q's are."""
        first = [self.beyond + (1 - self.beyond) * q for q in largest[:1]]
        return first + [(1 - self.beyond) * self.others * q for q in largest[1:]]


@dataclass
class SampledOutlook:
    """Learns from a row's own committed text how often first candidates are kept there."""

    kept: float = 0.0
    left: float = 0.0  # 1 - q's largest probability, added up over positions examined

    @property
    def outlook(self) -> Outlook:
        share, weight = _SAMPLED
        found = (self.kept + share * weight) / (self.left + weight)
        return Outlook(min(max(found, 0.0), 1.0), _OTHERS)

    def learn(self, largest: float, kept: bool) -> None:
        """Of a position that was examined: q's largest probability, and whether the first candidate was kept."""
        self.kept += kept - largest
        self.left += 1 - largest


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
