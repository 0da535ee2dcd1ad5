"""What a step costs by the number of guesses asked for, measured on the spot with the wall clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.fading import FADE
from outrider.theory import Costs


@dataclass
class Clock:
    """Costs of steps as they were timed: an average without guesses, and a line over the number of guesses with.

    Plain steps stand apart because a run of one token may use other kernels. The line starts at a nominal slope
    and leans on what was seen. Old observations fade; a single slow step, such as one during which the machine
    was busy elsewhere, counts as twice the usual at most.
    """

    nominal: float  # slope to start from: time of a guess over time of a plain step
    plain: _Average = field(default_factory=lambda: _Average())
    line: _Line = field(default_factory=lambda: _Line())
    seen: int = 0
    split: bool = False  # the last step with guesses also told what one without would take

    def add(self, gamma: int, seconds: float, undrafted: float | None = None) -> None:
        """A step took this long; without its draft, where that is known, it would have taken ``undrafted``."""
        self.seen += 1
        if undrafted is not None and undrafted <= 0:
            undrafted = None  # the process was stopped between two readings of the clock
        if self.seen == 1:
            return  # the first step of a shape warms up caches, threads and kernels
        if self.known and seconds > 2 * (usual := self._seconds(gamma)):
            seconds, undrafted = 2 * usual, None
        if gamma:
            self.line.add(gamma, seconds)
        self.split = gamma > 0 and undrafted is not None
        if gamma == 0 or undrafted is not None:
            self.plain.add(seconds if undrafted is None else undrafted)

    @property
    def known(self) -> bool:
        """Whether plain steps and steps with guesses can be compared."""
        return self.plain.weight > 0 and self.line.weight > 0

    @property
    def wants_plain(self) -> bool:
        """A few plain steps at first, then one in sixty-four, where nothing else tells what speculation saves."""
        return not self.split and self.line.weight >= 1 and (self.plain.weight < 2 or self.seen % 64 == 0)

    def costs(self) -> Costs:
        """In units of a plain step; what drafting takes is in the step as a whole. The papers' form until known."""
        if not self.known:
            return Costs(draft=self.nominal)
        return Costs(target=lambda width: self._seconds(width - 1) / self.plain.mean)

    def _seconds(self, gamma: int) -> float:
        return self.plain.mean if gamma == 0 else self.line.at(gamma, self.nominal * self.plain.mean)


@dataclass
class _Average:
    weight: float = 0.0
    mean: float = 0.0

    def add(self, value: float) -> None:
        self.weight = self.weight * FADE + 1
        self.mean += (value - self.mean) / self.weight


@dataclass
class _Line:
    """Least squares with fading weights; the slope is drawn to a given one by the weight of a few observations."""

    weight: float = 0.0
    x: float = 0.0  # means
    y: float = 0.0
    xx: float = 0.0  # sums of squared deviations
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        self.weight = self.weight * FADE + 1
        dx = x - self.x
        self.x += dx / self.weight
        self.y += (y - self.y) / self.weight
        self.xx = self.xx * FADE + dx * (x - self.x)
        self.xy = self.xy * FADE + dx * (y - self.y)

    def at(self, x: float, slope: float) -> float:
        pull = 10.0  # as of ten squared deviations of one guess
        fitted = (self.xy + pull * slope) / (self.xx + pull)
        return max(0.1 * self.y, self.y + max(0.0, fitted) * (x - self.x))  # a steep line must not promise time back
