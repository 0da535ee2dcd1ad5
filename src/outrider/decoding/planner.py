"""How many guesses a row is asked for in its next run; none where speculation does not pay.

A policy may read what a row's own earlier runs have *committed*, and clocks. Nothing else, for two reasons.
Noise is addressed by position: a guess that was discarded is drawn from the same noise when its position comes up
again, so whoever looks at it decides with knowledge of the draw, and the text is biased. And rows may share a seed:
the row beside may already have used the noise this one will use, so each row learns from itself alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from outrider.decoding.clock import Clock
from outrider.errors import require
from outrider.fading import FADE, PRIOR_WEIGHT
from outrider.options import GAMMAS
from outrider.theory import Costs, speedup
from outrider.types import Drafter


@dataclass(frozen=True)
class Setting:
    """The batch a policy plans for."""

    rows: int
    limit: int  # the most guesses a run has room for
    drafter: Drafter
    shape: Hashable  # steps of one shape have one cost

    @property
    def choices(self) -> Sequence[int]:
        """A drafter that limits its own guesses is asked for all or none."""
        return (0, self.limit) if plans(self.drafter) else range(self.limit + 1)


def declared_cost(drafter: Drafter) -> float:
    """c: time of a guess over time of a target run, as the drafter says; a small head's where it says nothing."""
    return float(getattr(drafter, "cost", 0.05))


def plans(drafter: Drafter) -> bool:
    """Whether the drafter itself stops where another guess is not worth its cost."""
    return bool(getattr(drafter, "plans", False))


class Planner(Protocol):
    """Decides for the rows of one batch."""

    def admit(self, row: int) -> None:
        """A new request is in this row: what was learnt there is another's."""

    def choose(self, row: int) -> int:
        """Guesses to ask for in the row's next run."""

    def learn(self, row: int, asked: int, accepted: int) -> None:
        """Of the guesses asked for, this many were committed."""

    def timed(self, gamma: int, seconds: float, undrafted: float | None) -> None:
        """A step whose longest row was asked for gamma guesses took this long; without them, if known, that long."""


@runtime_checkable
class Policy(Protocol):
    """A way to choose gamma; shared by batches and calls."""

    def start(self, setting: Setting) -> Planner: ...


@dataclass(frozen=True)
class Fixed:
    """Always the same gamma."""

    gamma: int

    def start(self, setting: Setting) -> Planner:
        return self

    def admit(self, row: int) -> None:
        """Nothing is learnt."""

    def choose(self, row: int) -> int:
        return self.gamma

    def learn(self, row: int, asked: int, accepted: int) -> None:
        """Nothing is learnt."""

    def timed(self, gamma: int, seconds: float, undrafted: float | None) -> None:
        """Nothing is learnt."""


class Auto:
    """The gamma with the greatest expected speed-up: Theorem 3.8 with costs as they are and acceptance by depth.

    ``costs`` fixes what guesses and runs cost (a number is the papers' c); a row's choices then follow from its own
    text alone. Without, steps are timed as they happen, and the timings are kept from call to call.
    """

    def __init__(self, costs: Costs | float | None = None) -> None:
        self.given = Costs(draft=costs) if isinstance(costs, (int, float)) else costs
        if self.given is not None:
            self.given.step(1)  # refuses what is no cost
        self._clocks: dict[Hashable, Clock] = {}

    @staticmethod
    def nominal(drafter: Drafter) -> Auto:
        """With the costs the drafter declares: nothing depends on a clock."""
        c = declared_cost(drafter)
        # A drafter that stops by itself makes about two guesses, however many it is asked for.
        return Auto(Costs(draft=lambda number: c if number <= 2 else 0.0) if plans(drafter) else c)

    def start(self, setting: Setting) -> Planner:
        if self.given is not None:
            return _Adaptive(setting, self.given)
        key = (setting.rows, setting.shape, setting.drafter.name)
        return _Adaptive(setting, self._clocks.setdefault(key, Clock(declared_cost(setting.drafter))))


class _Adaptive:
    def __init__(self, setting: Setting, costs: Costs | Clock) -> None:
        self.setting, self.clock = setting, costs if isinstance(costs, Clock) else None
        self.costs = costs.costs() if isinstance(costs, Clock) else costs
        self.rows = [Acceptance(setting.limit) for _ in range(setting.rows)]
        self.pauses = [Pause() for _ in range(setting.rows)]

    def admit(self, row: int) -> None:
        self.rows[row], self.pauses[row] = Acceptance(self.setting.limit), Pause()

    def choose(self, row: int) -> int:
        if self.clock is not None and self.clock.wants_plain:
            return 0
        chances = self.rows[row].chances()
        gains = {gamma: speedup(chances, gamma, self.costs) for gamma in self.setting.choices}
        best = max(gains, key=lambda gamma: gains[gamma])
        if best == 0 and self.pauses[row].over():
            return max((g for g in gains if g), key=lambda gamma: gains[gamma], default=0)
        if best:
            self.pauses[row] = Pause()
        return best

    def learn(self, row: int, asked: int, accepted: int) -> None:
        self.rows[row].add(asked, accepted)

    def timed(self, gamma: int, seconds: float, undrafted: float | None) -> None:
        if self.clock is not None:
            self.clock.add(gamma, seconds, undrafted)
            self.costs = self.clock.costs()


@dataclass
class Pause:
    """How long a row goes without guesses before it tries again: 16 runs, then twice as long after every failure."""

    length: int = 16
    left: int = 16

    def over(self) -> bool:
        self.left -= 1
        if self.left > 0:
            return False
        self.length = self.left = min(2 * self.length, 256)
        return True


_PRIOR = 0.6
"""Acceptance before anything is known: a fair drafter's."""

_DEPTH_WEIGHT = 4.0
"""How many guesses at one depth weigh as much as the acceptance over all depths."""


@dataclass
class Acceptance:
    """The acceptance of one row by depth: how often guess k is kept where those before it were.

    Drafters differ by depth (a copy that has held for three tokens will hold on; a head tires), so the one alpha of
    the papers is only what every depth starts from. A guess the drafter did not make counts as one not kept.
    """

    limit: int
    tried: list[float] = field(init=False)
    kept: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.tried, self.kept = [0.0] * self.limit, [0.0] * self.limit

    def add(self, asked: int, accepted: int) -> None:
        if asked == 0:
            return
        for depth in range(self.limit):
            self.tried[depth] = self.tried[depth] * FADE + (depth < min(accepted + 1, asked))
            self.kept[depth] = self.kept[depth] * FADE + (depth < accepted)

    @property
    def alpha(self) -> float:
        return (sum(self.kept) + _PRIOR * PRIOR_WEIGHT) / (sum(self.tried) + PRIOR_WEIGHT)

    def chances(self) -> list[float]:
        """Of guess 1, 2, ... to be kept if those before it were."""
        alpha, weight = self.alpha, _DEPTH_WEIGHT
        return [(k + alpha * weight) / (t + weight) for k, t in zip(self.kept, self.tried, strict=True)]


@dataclass(frozen=True)
class Gradient:
    """The rule of Tulsian et al. (2024), as a baseline: running average of acceptance, gradient ascent on Theorem 3.8.

    gamma is a real number per row that climbs the walltime improvement for the average acceptance so far and a
    fixed cost c; it is rounded when used and never below 1, since the rule has no notion of stepping aside.
    """

    c: float | None = None  # None: what the drafter declares
    rate: float = 2.0  # step size of the ascent
    first: float = 4.0

    def __post_init__(self) -> None:
        require(self.c is None or self.c >= 0, f"c must be 0 or more, got {self.c!r}")
        require(self.rate > 0, f"rate must be above 0, got {self.rate!r}")

    def start(self, setting: Setting) -> Planner:
        return _Climbing(self, setting)


class _Climbing:
    def __init__(self, rule: Gradient, setting: Setting) -> None:
        self.rule, self.limit, self.plans = rule, setting.limit, plans(setting.drafter)
        self.c = declared_cost(setting.drafter) if rule.c is None else rule.c
        self.rows = [[0.0, 0.0, rule.first] for _ in range(setting.rows)]  # kept, examined, gamma

    def admit(self, row: int) -> None:
        self.rows[row] = [0.0, 0.0, self.rule.first]

    def choose(self, row: int) -> int:
        if self.plans:  # it stops by itself, and how far it was asked must not depend on a neighbour
            return self.limit
        return min(self.limit, max(1, round(self.rows[row][2])))

    def learn(self, row: int, asked: int, accepted: int) -> None:
        kept, examined, gamma = self.rows[row]
        kept, examined = kept + accepted, examined + min(accepted + 1, asked)
        alpha = min(max(kept / examined, 0.01), 0.99) if examined else _PRIOR
        gamma += self.rule.rate * improvement_slope(alpha, gamma, self.c)
        self.rows[row] = [kept, examined, min(max(gamma, 1.0), float(max(1, self.limit)))]

    def timed(self, gamma: int, seconds: float, undrafted: float | None) -> None:
        """The rule takes c as known."""


def improvement_slope(alpha: float, gamma: float, c: float) -> float:
    """d/dgamma of (1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1)), Theorem 3.8, for real gamma."""
    power, run = math.pow(alpha, gamma + 1), gamma * c + 1
    return (-power * math.log(alpha) * run - (1 - power) * c) / ((1 - alpha) * run * run)


def chosen(gamma: Any, auto: Auto) -> int | Policy:
    """What the option ``gamma`` says: a whole number, a policy, "gradient", or ("auto", None) the given one."""
    known = isinstance(gamma, (int, Policy)) or gamma in (None, *GAMMAS)
    require(known, f"gamma must be a whole number, {' or '.join(GAMMAS)}, or a policy, got {gamma!r}")
    if gamma in (None, "auto"):
        return auto
    decided: int | Policy = Gradient() if gamma == "gradient" else gamma
    return decided
