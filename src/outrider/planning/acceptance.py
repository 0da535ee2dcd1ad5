"""What a row's own runs tell of its drafter: how often guesses are made and kept, and when to try again."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.drafters.experience import FADE

PRIOR = 0.6
"""Acceptance before anything is known: a fair drafter's."""

CHOSEN = 0.8
"""The same of a drafter that is told what guesses cost and makes none that it does not believe in."""

_PRIOR_WEIGHT = 8.0
"""Counts as so many guesses: where guesses are dear, two that fail at the start must not end the matter."""

_DEPTH_WEIGHT = 4.0
"""How many guesses at one depth weigh as much as the acceptance over all depths."""


@dataclass
class Acceptance:
    """The acceptance of one row by depth: how often guess k is made, and kept, where those before it were kept.

    Drafters differ by depth (a copy that has held for three tokens will hold on; a head tires), so the one alpha of
    the papers is only what every depth starts from. A drafter that does not make a guess where the text has followed
    it so far says nothing of the text to come: it decided before anything was drawn there.
    """

    limit: int
    prior: float = PRIOR
    asked: list[float] = field(init=False)  # runs that reached depth k with guesses still asked for
    made: list[float] = field(init=False)
    kept: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.asked, self.made, self.kept = ([0.0] * self.limit for _ in range(3))

    def add(self, asked: int, accepted: int, examined: int) -> None:
        if asked == 0:
            return
        reached = (min(accepted + 1, asked), examined, accepted)
        for counts, depths in zip((self.asked, self.made, self.kept), reached, strict=True):
            counts[:] = [count * FADE + (depth < depths) for depth, count in enumerate(counts)]

    @property
    def alpha(self) -> float:
        return (sum(self.kept) + self.prior * _PRIOR_WEIGHT) / (sum(self.made) + _PRIOR_WEIGHT)

    def chances(self) -> list[float]:
        """Of guess 1, 2, ... to be kept if it is made and those before it were kept."""
        alpha, weight = self.alpha, _DEPTH_WEIGHT
        return [(kept + alpha * weight) / (made + weight) for kept, made in zip(self.kept, self.made, strict=True)]

    def shares(self) -> list[float]:
        """Of guess 1, 2, ... to be made if those before it were kept; taken for certain until seen otherwise."""
        return [(made + 1) / (asked + 1) for made, asked in zip(self.made, self.asked, strict=True)]


@dataclass
class Pause:
    """How long a row goes without guesses before it tries again: 8 runs, then twice as long after every failure.

    One guess is too few to change an opinion: a try goes on while guesses are kept, for up to five runs.
    """

    length: int = 8
    left: int = 8
    more: int = 0  # further runs that this try may have
    again: bool = False

    def over(self) -> bool:
        """Whether the coming run tries again."""
        if self.again:
            self.again = False
            return True
        self.left -= 1
        if self.left > 0:
            return False
        self.length = self.left = min(2 * self.length, 256)
        self.more = 4
        return True

    def encourage(self) -> None:
        """A guess was kept."""
        self.again = self.more > 0
        self.more -= 1
