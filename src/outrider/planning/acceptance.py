"""What a row's own runs tell of its drafter: how often guesses are made and kept, and when to try again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt

from outrider.drafters.experience import FADE

PRIOR = 0.6
"""Acceptance before anything is known: a fair drafter's."""

CHOSEN = 0.8
"""The same of a drafter that is told what guesses cost and makes none that it does not believe in, at temperature 0.

Above it such a drafter believes in a distribution: there 0.55 to 0.6 of the shipped head's guesses were kept.
"""

_PRIOR_WEIGHT = 8.0
"""Counts as so many guesses: where guesses are dear, two that fail at the start must not end the matter."""

_DEPTH_WEIGHT = 4.0
"""How many guesses at one depth weigh as much as the acceptance over all depths."""

SHORTEST = 8
"""Runs of the first pause, where nothing says that a try is dear."""

PATIENCE = 4
"""Runs in a row for which a drafter that may decline is asked in vain before it is asked less often."""

_A_TRY = 0.01
"""The share of the time that trying may take where guesses have not paid."""

_VARIANCE, _LEAST_VARIANCE = 0.02, 0.0005
"""How far rows are apart in their acceptance, before anything is known, and at the least."""

_A_ROW = 0.05
"""What one row that ended counts for in that."""

_EXPERIENCE_FADE = 0.995
"""What was seen in all rows fades slowly: about two hundred runs of a row are remembered."""


@dataclass
class Acceptance:
    """The acceptance of one row by depth: how often guess k is made, and kept, where those before it were kept.

    Drafters differ by depth (a copy that has held for three tokens will hold on; a head tires), so the one alpha of
    the papers is only what every depth starts from. A drafter that does not make a guess where the text has followed
    it so far says nothing of the text to come: it decided before anything was drawn there.
    """

    limit: int
    prior: float = PRIOR
    usual: Sequence[float] = ()  # how often guess 1, 2, ... is made, before anything is known; (): always
    fade: float = FADE
    asked: list[float] = field(init=False)  # runs that reached depth k with guesses still asked for
    made: list[float] = field(init=False)
    kept: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.asked, self.made, self.kept = ([0.0] * self.limit for _ in range(3))

    def add(self, asked: int, accepted: int, examined: int) -> None:
        """Of one run."""
        if asked:
            self.add_all([(asked, accepted, examined)])

    def add_all(self, told: Sequence[tuple[int, int, int]]) -> None:
        """Of rows that ran together, or of one: guesses asked for, accepted and examined."""
        told = [one for one in told if one[0]]
        if not told:
            return
        fade = self.fade ** len(told)
        for index, counts in enumerate((self.asked, self.made, self.kept)):
            counts[:] = [count * fade for count in counts]  # for every row and run: it must not take long
            for asked, accepted, examined in told:
                for depth in range(min((min(accepted + 1, asked), examined, accepted)[index], self.limit)):
                    counts[depth] += 1

    @property
    def alpha(self) -> float:
        return (sum(self.kept) + self.prior * _PRIOR_WEIGHT) / (sum(self.made) + _PRIOR_WEIGHT)

    def chances(self) -> list[float]:
        """Of guess 1, 2, ... to be kept if it is made and those before it were kept."""
        alpha, weight = self.alpha, _DEPTH_WEIGHT
        return [(kept + alpha * weight) / (made + weight) for kept, made in zip(self.kept, self.made, strict=True)]

    def shares(self) -> list[float]:
        """Of guess 1, 2, ... to be made if those before it were kept; as usual until seen otherwise."""
        usual = self.usual or [1.0] * self.limit
        seen = zip(self.made, self.asked, usual, strict=True)
        return [(made + expected) / (asked + 1) for made, asked, expected in seen]


@dataclass
class Pause:
    """How long a row goes without guesses before it tries again; twice as long after every failure.

    One guess is too few to change an opinion: a try goes on while guesses are kept, for up to five runs.
    """

    length: int = SHORTEST
    left: int = SHORTEST
    more: int = 0  # further runs that this try may have
    again: bool = False

    @staticmethod
    def worth(cost: float) -> Pause:
        """One after which a try that costs so many plain runs takes a small share of the time."""
        length = round(min(max(cost / _A_TRY, SHORTEST), 1024))
        return Pause(length, length)

    def over(self, least: int | None = None) -> bool:
        """Whether the coming run tries again; ``least``: runs of the next pause at least, by what a try costs."""
        if self.again:
            self.again = False
            return True
        self.left -= 1
        if self.left > 0:
            return False
        floor = self.length if least is None else least
        self.length = self.left = max(floor, min(2 * self.length, 256))
        self.more = 4
        return True

    def encourage(self) -> None:
        """A guess was kept."""
        self.again = self.more > 0
        self.more -= 1


@dataclass
class Asking:
    """How it went when a drafter was asked, for one row or for rows that decide together, and when to ask again."""

    pause: Pause = field(default_factory=Pause)
    vain: int = 0  # how often in a row it was asked and nothing came of it
    since: int = 0  # runs since it was asked

    def learn(self, asked: bool, gained: bool) -> None:
        """Of the run that is over."""
        self.since = 0 if asked else self.since + 1
        if asked:
            self.vain = 0 if gained else self.vain + 1
        if gained:
            self.pause.encourage()

    @property
    def open(self) -> bool:
        """Whether one that may decline is asked although nothing is expected of it: a copy may begin anywhere."""
        return self.vain < PATIENCE or self.since >= SHORTEST * min(self.vain - PATIENCE + 1, 4)


class Experience:
    """What all rows so far have shown of a drafter: what a new row starts from. It outlives batches and calls.

    The pause is one for all of them: where texts are shorter than a pause, none would ever try again.
    """

    def __init__(self, limit: int, prior: float) -> None:
        self.seen = Acceptance(limit, prior, fade=_EXPERIENCE_FADE)
        self.variance = _VARIANCE  # of acceptance from row to row
        self.asking = Asking()

    def new_row(self) -> Acceptance:
        return Acceptance(self.seen.limit, self.seen.alpha, self.seen.shares())

    def done(self, row: Acceptance) -> None:
        """A row has ended: how far it was from all others, less what chance alone makes of as many guesses."""
        made = sum(row.made)
        if made:
            alpha, counts = self.seen.alpha, _A_ROW * min(1.0, made / 16)
            apart = (sum(row.kept) / made - alpha) ** 2 - alpha * (1 - alpha) / made
            self.variance = max(self.variance + counts * (apart - self.variance), _LEAST_VARIANCE)

    def slowest(self, row: Acceptance, rows: int) -> tuple[list[float], list[float]]:
        """How often guesses are kept and made in a row that the others of a batch wait for.

        What it has shown counts as rows differ, and while it has shown little, it may be any: the least of so many.
        """
        alpha = self.seen.alpha
        weight = alpha * (1 - alpha) / self.variance
        made, kept = sum(row.made), sum(row.kept)
        mean, unknown = (kept + weight * alpha) / (made + weight), sqrt(self.variance * weight / (made + weight))
        least = max(0.0, mean - 0.75 * sqrt(2 * log(rows)) * unknown)  # of so many numbers that are normal
        return [min(1.0, chance * least / alpha) for chance in self.seen.chances()], self.seen.shares()
