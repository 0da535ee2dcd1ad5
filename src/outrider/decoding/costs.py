"""What a step costs by the number of guesses asked for: given, or measured on the spot with the wall clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.errors import require


@dataclass(frozen=True)
class Costs:
    """Time of a step with 0, 1, 2... guesses, in any unit. Beyond the last one it goes on as from the one before."""

    steps: tuple[float, ...]

    def __post_init__(self) -> None:
        good = len(self.steps) >= 2 and all(isinstance(s, (int, float)) and 0 < s < float("inf") for s in self.steps)
        require(good, f"costs must be times of steps with 0, 1, ... guesses, two or more above 0, got {self.steps!r}")

    @staticmethod
    def of(costs: Costs | Sequence[float]) -> Costs:
        return costs if isinstance(costs, Costs) else Costs(tuple(costs))

    @staticmethod
    def per_guess(c: float) -> Costs:
        """The papers' assumption: a guess takes c target runs, and a run of any width takes 1."""
        return Costs((1.0, 1.0 + c))

    def __call__(self, gamma: int) -> float:
        last = len(self.steps) - 1
        if gamma <= last:
            return self.steps[gamma]
        return self.steps[last] + (gamma - last) * max(0.0, self.steps[last] - self.steps[last - 1])


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

    def add(self, gamma: int, seconds: float) -> None:
        self.seen += 1
        if self.seen == 1:
            return  # the first step of a shape warms up caches, threads and kernels
        usual = self(gamma) if self.known else seconds
        seconds = min(seconds, 2 * usual)
        if gamma == 0:
            self.plain.add(seconds)
        else:
            self.line.add(gamma, seconds)

    @property
    def known(self) -> bool:
        """Whether plain steps and steps with guesses can be compared."""
        return self.plain.weight > 0 and self.line.weight > 0

    @property
    def wants_plain(self) -> bool:
        """A few plain steps at first, then one in sixty-four: without them nothing says what speculation saves."""
        return self.line.weight >= 1 and (self.plain.weight < 2 or self.seen % 64 == 0)

    def __call__(self, gamma: int) -> float:
        return self.plain.mean if gamma == 0 else self.line.at(gamma, self.nominal * self.plain.mean)


_FADE = 0.97
"""Weight of an observation when the next one comes in: about thirty steps are remembered."""


@dataclass
class _Average:
    weight: float = 0.0
    mean: float = 0.0

    def add(self, value: float) -> None:
        self.weight = self.weight * _FADE + 1
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
        self.weight = self.weight * _FADE + 1
        dx = x - self.x
        self.x += dx / self.weight
        self.y += (y - self.y) / self.weight
        self.xx = self.xx * _FADE + dx * (x - self.x)
        self.xy = self.xy * _FADE + dx * (y - self.y)

    def at(self, x: float, slope: float) -> float:
        pull = 10.0  # as of ten squared deviations of one guess
        fitted = (self.xy + pull * slope) / (self.xx + pull)
        return self.y + max(0.0, fitted) * (x - self.x)
