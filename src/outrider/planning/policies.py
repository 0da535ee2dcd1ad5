"""How many guesses a row is asked for in its next run; none where speculation does not pay.

A policy may read what a row's own earlier runs have *committed*, whether the drafter had a guess behind that, which
it decides by committed text alone, and clocks. Nothing else, for two reasons.
Noise is addressed by position: a guess that was discarded is drawn from the same noise when its position comes up
again, so whoever looks at it decides with knowledge of the draw, and the text is biased. And rows may share a seed:
the row beside may already have used the noise this one will use, so each row learns from itself alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from outrider.core.model_facts import facts_of
from outrider.core.protocols import Drafter, LanguageModel
from outrider.core.traits import declared_cost, traits_of
from outrider.drafters.prices import Ladder, Prices
from outrider.errors import require
from outrider.options import GAMMAS
from outrider.planning.acceptance import CHOSEN, PRIOR, Acceptance, Pause
from outrider.planning.step_clock import Clock, Timing
from outrider.theory import ByNumber, Costs, interpolated

ASKING = 0.05
"""What asking a drafter costs where nothing is known, in plain runs: one that never has a guess must be left alone."""


@dataclass(frozen=True)
class Setting:
    """The batch a policy plans for."""

    rows: int
    limit: int  # the most guesses a run has room for
    drafter: Drafter
    shape: Hashable  # steps of one shape have one cost
    widths: ByNumber = 1.0  # what the target declares that runs cost by width, in plain ones
    splits: bool = True  # guesses not made take no time, and drafts are timed apart from runs; not so on a GPU

    @property
    def declared(self) -> Costs:
        """What to believe before anything is measured."""
        c = declared_cost(self.drafter, self.rows)
        if self.splits:
            return Costs(self.widths, c, ASKING)
        widths = Costs(self.widths)
        return Costs(lambda width: widths.run(width) + c * (width - 1))  # steps as a whole


def declared_widths(target: LanguageModel, rows: int = 1) -> ByNumber:
    """What a run of so many rows costs by its width, in runs of one token each, as the target's ``width_costs`` say
    for one row and some widths: tokens cost the same whichever row they are in. Else all widths cost the same."""
    declared = facts_of(target).width_costs
    if declared is None:
        return 1.0
    widest, between = max(declared), interpolated(declared)
    slope = between(widest) - between(widest - 1)

    def tokens(count: int) -> float:
        return between(min(count, widest)) + slope * max(0, count - widest)

    return lambda width: tokens(rows * width) / tokens(rows)


def plans(drafter: Drafter) -> bool:
    """Whether the drafter itself stops where another guess is not worth its cost."""
    return traits_of(drafter).stops_itself


def declines(drafter: Drafter) -> bool:
    """Whether the drafter, asked, makes no guess that is not worth its time: asking it costs next to nothing."""
    return traits_of(drafter).cheap_to_ask


class Planner(Protocol):
    """Decides for the rows of one batch."""

    def admit(self, row: int) -> None:
        """A new request is in this row: what was learnt there is another's."""

    def choose(self, row: int) -> int:
        """Guesses to ask for in the row's next run."""

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        """Of the guesses asked for, this many were committed, and this many were made as far as the text followed:
        one more, if a guess was rejected, and none more if the drafter had stopped."""

    def timed(self, step: Timing) -> None:
        """How long a step took."""


@runtime_checkable
class Pricing(Protocol):
    """A planner that says what guesses take and time is worth: a drafter that stops itself is told before a step."""

    @property
    def prices(self) -> Prices | None: ...


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

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        """Nothing is learnt."""

    def timed(self, step: Timing) -> None:
        """Nothing is learnt."""


class Auto:
    """The gamma with the greatest expected speed-up: Theorem 3.8 with costs as they are and acceptance by depth.

    A drafter that ends its drafts itself is told those costs instead, and what time is worth (``prices.py``).
    ``costs`` fixes what guesses and runs cost (a number is the papers' c, asked for at a small price); a row's choices
    then follow from its own text alone. Without, steps are timed as they happen, and the timings are kept from call to
    call; or, with ``clock=False``, nothing counts but what drafter and target declare.
    """

    def __init__(self, costs: Costs | float | None = None, *, clock: bool = True) -> None:
        self.given = Costs(draft=costs, asking=ASKING) if isinstance(costs, (int, float)) else costs
        if self.given is not None:
            self.given.step(1)  # refuses what is no cost
        self.clock = clock
        self._clocks: dict[Hashable, Clock] = {}

    def measured(self) -> list[tuple[Ladder, int]]:
        """What steps have cost so far, in plain ones, for every kind of batch seen; and from how many steps."""
        return [(clock.ladder(), clock.steps) for clock in list(self._clocks.values())]

    def start(self, setting: Setting) -> Planner:
        if self.given is not None or not self.clock:
            return _Adaptive(setting, self.given or setting.declared)
        key = (setting.rows, setting.shape, setting.drafter.name)
        return _Adaptive(setting, self._clocks.setdefault(key, Clock(setting.declared, setting.limit)))


_WORTHWHILE = 1.05
"""The least expected speed-up that guesses are made for: estimates are off by as much."""

_PATIENCE = 4
"""Runs in a row for which a drafter that may decline is asked in vain before it is asked less often."""


class _Adaptive:
    def __init__(self, setting: Setting, costs: Costs | Clock) -> None:
        self.setting, self.clock = setting, costs if isinstance(costs, Clock) else None
        self.plans = plans(setting.drafter)
        # Asked for all or none where what it does not draft takes its time all the same.
        self.choices = (0, setting.limit) if self.plans and not setting.splits else range(setting.limit + 1)
        self.ladder = costs.ladder() if isinstance(costs, Clock) else Ladder.of(costs, setting.limit)
        self.declines = declines(setting.drafter) and setting.splits
        self.vain = [0] * setting.rows  # how often in a row it was asked and nothing came of it
        self.prior = CHOSEN if self.plans and setting.splits else PRIOR
        self.rows = [Acceptance(setting.limit, self.prior) for _ in range(setting.rows)]
        self.pauses = [Pause() for _ in range(setting.rows)]
        self.rates = [1.0] * setting.rows

    def admit(self, row: int) -> None:
        self.rows[row], self.pauses[row] = Acceptance(self.setting.limit, self.prior), Pause()
        self.vain[row] = 0

    def choose(self, row: int) -> int:
        if self.clock is not None and self.clock.wants_plain:
            return 0
        rates = self.ladder.rates(*self._outlook(self.rows[row]))
        best = max(self.choices, key=rates.__getitem__)
        best = best if rates[best] >= _WORTHWHILE * rates[0] else 0
        self.rates[row] = rates[best]
        if self.declines and self.vain[row] < _PATIENCE:
            return self.setting.limit
        if best == 0 and self.pauses[row].over():
            best = max(self.choices[1:], key=rates.__getitem__, default=0)
            self.rates[row] /= 2  # time is cheap for once: a drafter that ends its drafts itself must try, too
        elif best:
            self.pauses[row] = Pause()
        # One that ends its drafts itself, at these prices, does better than any number that could be chosen for it.
        return self.setting.limit if best and self.plans else best

    def _outlook(self, seen: Acceptance) -> tuple[list[float], list[float]]:
        """By depth: how often a guess that was made is kept, and how often one is made that was asked for."""
        chances, shares = seen.chances(), seen.shares()
        if self.setting.splits:
            return chances, shares
        # A guess that is not made takes its time all the same: as if it were made and not kept.
        return [chance * share for chance, share in zip(chances, shares, strict=True)], [1.0] * len(shares)

    @property
    def prices(self) -> Prices | None:
        if not self.setting.splits:
            return None
        return Prices(self.ladder, self.rates, [row.alpha for row in self.rows])

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        self.rows[row].add(asked, accepted, examined)
        if asked:
            self.vain[row] = 0 if accepted else self.vain[row] + 1
        if accepted:
            self.pauses[row].encourage()

    def timed(self, step: Timing) -> None:
        if self.clock is not None:
            self.clock.add(step)
            if self.clock.tells_more:
                self.ladder = self.clock.ladder()


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
        self.c = declared_cost(setting.drafter, setting.rows) if rule.c is None else rule.c
        self.rows = [[0.0, 0.0, rule.first] for _ in range(setting.rows)]  # kept, tried, gamma

    def admit(self, row: int) -> None:
        self.rows[row] = [0.0, 0.0, self.rule.first]

    def choose(self, row: int) -> int:
        if self.plans:  # it stops by itself, and how far it was asked must not depend on a neighbour
            return self.limit
        return min(self.limit, max(1, round(self.rows[row][2])))

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        kept, tried, gamma = self.rows[row]
        kept, tried = kept + accepted, tried + min(accepted + 1, asked)
        alpha = min(max(kept / tried, 0.01), 0.99) if tried else PRIOR
        gamma += self.rule.rate * improvement_slope(alpha, gamma, self.c)
        self.rows[row] = [kept, tried, min(max(gamma, 1.0), float(max(1, self.limit)))]

    def timed(self, step: Timing) -> None:
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
