"""How many guesses a row is asked for in its next run; none where speculation does not pay.

A policy may read what a row's own earlier runs have *committed*, whether the drafter had a guess behind that, which
it decides by committed text alone, and clocks. Nothing else, for two reasons.
Noise is addressed by position: a guess that was discarded is drawn from the same noise when its position comes up
again, so whoever looks at it decides with knowledge of the draw, and the text is biased. And rows may share a seed:
the row beside may already have used the noise this one will use, so each row learns from itself alone.
Where the text does not depend on gamma at all, or no two rows share a seed, and steps are timed, rows decide together:
they share a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from outrider.checks import check_gamma
from outrider.core.model_facts import facts_of
from outrider.core.prices import Ladder, Prices
from outrider.core.protocols import LanguageModel
from outrider.core.traits import declared_cost
from outrider.errors import require
from outrider.planning.acceptance import PRIOR, Experience
from outrider.planning.adaptive import GRAPH_GAMMAS, Adaptive
from outrider.planning.setting import ASKING as ASKING
from outrider.planning.setting import Setting as Setting
from outrider.planning.step_clock import Clock, Timing
from outrider.theory import ByNumber, Costs, interpolated


def declared_widths(target: LanguageModel, rows: int = 1) -> ByNumber:
    """What a run of so many rows costs by its width, in runs of one token each, as the target's ``width_costs`` say
    for one row and some widths: tokens cost the same whichever row they are in. Else all widths cost the same."""
    tokens = declared_runs(target)
    return 1.0 if tokens is None else lambda width: tokens(rows * width) / tokens(rows)


def declared_runs(target: LanguageModel) -> Callable[[int], float] | None:
    """What a run costs by its tokens, in whichever rows they are, in runs of one; None: all runs cost the same."""
    declared = facts_of(target).width_costs
    if declared is None:
        return None
    widest, between = max(declared), interpolated(declared)
    slope = between(widest) - between(widest - 1)
    return lambda count: between(min(count, widest)) + slope * max(0, count - widest)


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
class JointPlanner(Planner, Protocol):
    """One that decides for all rows of a run together, and is told of them before it is asked."""

    def begin(self, left: Sequence[int], waiting: bool) -> None:
        """A run begins: tokens that each row may still give, 0 for an empty slot; ``waiting``: others want a slot."""

    def ended(self, left: Sequence[int]) -> None:
        """The oldest run that has begun was learnt from: what its rows may still give. Others may be under way."""


@runtime_checkable
class ClockPlanner(Protocol):
    """One that may go by timed steps: two calls with one seed may then choose another gamma."""

    @property
    def timed_by_clock(self) -> bool: ...


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


@dataclass(frozen=True)
class Rehearsal:
    """Asks for these numbers of guesses, run by run, then for none: whatever a later call needs is made ready.

    ``told`` learns what the steps take.
    """

    numbers: tuple[int, ...]
    told: Policy | None = None

    @staticmethod
    def of_graphs(most: int, told: Policy | None = None) -> Rehearsal:
        """Every number up to ``most`` that "auto" may choose beside CUDA graphs: captured, and timed a few times."""
        numbers = {0, most, *(number for number in GRAPH_GAMMAS if number < most)}
        return Rehearsal(tuple(number for number in sorted(numbers, reverse=True) for _ in range(4)), told)

    @property
    def tokens(self) -> int:
        """What a text must have room for: all guesses may be kept."""
        return sum(self.numbers) + len(self.numbers) + 2

    def start(self, setting: Setting) -> Planner:
        return _Rehearsing(self.numbers, None if self.told is None else self.told.start(setting))


class _Rehearsing:
    def __init__(self, numbers: tuple[int, ...], told: Planner | None) -> None:
        self.numbers, self.run, self.told = [*numbers, 0], -1, told
        # As who listens: its steps must overlap as theirs will, or they would take longer here than there.
        listener: object = told
        self.timed_by_clock = isinstance(listener, ClockPlanner) and listener.timed_by_clock

    def admit(self, row: int) -> None:
        """All rows are alike."""

    def begin(self, left: Sequence[int], waiting: bool) -> None:
        self.run += 1

    def ended(self, left: Sequence[int]) -> None:
        """Nothing is learnt."""

    def choose(self, row: int) -> int:
        return self.numbers[min(self.run, len(self.numbers) - 1)]

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        """Nothing is learnt."""

    def timed(self, step: Timing) -> None:
        if self.told is not None:
            self.told.timed(step)


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
        self._experiences: dict[Hashable, Experience] = {}

    def measured(self) -> list[tuple[Ladder, int]]:
        """What steps have cost so far, in plain ones, for every kind of batch seen; and from how many steps."""
        return [(clock.ladder(), clock.steps) for clock in list(self._clocks.values())]

    def start(self, setting: Setting) -> Planner:
        if self.given is not None or not self.clock:
            return Adaptive(setting, self.given or setting.declared)

        known: dict[int, Clock] = {}  # asked for twice a step: working out the setting takes longer than finding it

        def clock_of(rows: int) -> Clock:
            if rows not in known:
                there = setting.running(rows)
                key = (there.rows, setting.shape, setting.drafter.name, setting.sampled)
                if key not in self._clocks:
                    self._clocks.setdefault(key, Clock(there.declared, setting.limit))
                known[rows] = self._clocks[key]
            return known[rows]

        if not setting.joint:  # when another row has ended is that row's noise
            return Adaptive(setting, lambda _: clock_of(0))
        kind = (setting.drafter.name, setting.limit, setting.splits, setting.sampled, setting.beams)
        return Adaptive(setting, clock_of, self._experiences.setdefault(kind, Experience(setting.limit, setting.prior)))


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
        self.rule, self.limit, self.plans = rule, setting.limit, setting.plans
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
    check_gamma(gamma)
    if gamma is None or gamma == "auto":
        return auto
    decided: int | Policy = Gradient() if gamma == "gradient" else gamma
    return decided
