"""What drafts and target runs take by how many guesses there are, measured on the spot with the wall clock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outrider.core.prices import Ladder
from outrider.theory import Costs

_MEMORY = 16
"""Of each number of guesses so many steps count, the latest."""

_OFTEN = 3
"""Steps from which on they say what a number of guesses takes."""

_FAR = 1.5
"""How much longer than expected fewer steps may take and be believed."""

WAKING = 8.0
"""What it costs, in plain runs, to ask a drafter again that was told nothing for a while, on a GPU, until it is timed;
at most three times as much is believed, or it would never be timed again."""


@dataclass(frozen=True)
class Timing:
    """How long the parts of a step took."""

    width: int  # tokens per row in the target's run; 1 where all runs are of one width
    seconds: float  # all but the draft
    drafting: float | None = None  # None: nobody was asked, or it cannot be told apart and is in ``seconds``
    guesses: int = 0  # that drafting gave, and took time for
    rows: int = 0  # that were in the run; 0: all slots
    waking: bool = False  # on a GPU: a drafter that had rested was woken for it, and read the texts
    read: frozenset[int] = frozenset()
    """On a CPU: rows whose texts a drafter read for its first guesses behind them (a draft model's prefill).
    ``drafting`` has that time in it."""


@dataclass
class Clock:
    """Measured costs of steps. It starts from the declared ones, and measurements replace them.

    Runs are kept apart by width and drafts by the guesses made, because a drafter may stop early. A step that was slow
    because the machine was busy counts for little beside others; with too few steps it counts for at most three
    times the expected cost, and is dropped after a while: the width would otherwise be avoided and never timed again.
    """

    declared: Costs
    limit: int  # the most guesses of a step
    steps: int = 0
    since_plain: int = 0  # steps since one whose run had a single token
    drafted: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)  # calls share a clock

    def __post_init__(self) -> None:
        numbers = range(self.limit + 1)
        self.runs = CostCurve([0.0, *(self.declared.run(guesses + 1) for guesses in numbers)])
        self.drafts = CostCurve([self.declared.drafts(guesses) for guesses in numbers])
        self.woken: deque[Timing] = deque(maxlen=_MEMORY)
        self.readings: deque[Timing] = deque(maxlen=_MEMORY)
        self._found: tuple[list[float], list[float]] | None = None  # runs and drafts by number, until a step is added

    def add(self, step: Timing) -> None:
        with self._lock:
            self._found = None
            self._add(step)

    def _add(self, step: Timing) -> None:
        if step.waking:
            self.woken.append(step)
            return
        self.steps += 1
        if self.steps == 1 or step.seconds <= 0 or (step.drafting is not None and step.drafting < 0):
            return  # the first step of a shape warms up; a process that was stopped may see clocks run backwards
        self.since_plain = 0 if step.width == 1 else self.since_plain + 1
        self.runs.add(step.width, step.seconds)
        if step.drafting is not None and (self.drafted or step.guesses == 0):
            if step.read:
                self.readings.append(step)
            else:
                self.drafts.add(min(step.guesses, self.limit), step.drafting)  # of two drafters that may be more
        self.drafted = self.drafted or step.guesses > 0  # the first draft of all makes the drafter ready
        if self.steps % 256 == 0:
            self.runs.forget()
            self.drafts.forget()

    @property
    def wants_plain(self) -> bool:
        """A few plain runs at first, then one in sixty-four, so that others can be compared with them."""
        return self.since_plain > 0 and (len(self.runs.seen.get(1, ())) < 2 or self.since_plain >= 64)

    def tells_more(self, resting: bool) -> bool:
        """Whether to look again: after every step while little is known, later now and then, and seldom where nobody
        has guessed for a while: what plain runs take changes little, and looking takes time of each."""
        return self.steps < 32 or self.steps % (32 if resting else 8) == 0

    def _tables(self) -> tuple[list[float], list[float]]:
        """Seconds of runs by guesses, and of drafts."""
        if self._found is None:
            runs = self.runs.table(range(1, self.limit + 2), 1.0)
            self._found = runs, self.drafts.table(range(self.limit + 1), runs[0], doubting=True)
        return self._found

    def ladder(self) -> Ladder:
        """In units of a plain run."""
        with self._lock:
            runs, drafts = self._tables()
        return Ladder(tuple(t / runs[0] for t in runs), tuple(t / runs[0] for t in drafts))

    def waking(self) -> float:
        """What a step takes beyond others of its width if a drafter is woken for it, in plain runs."""
        with self._lock:
            if not self.woken or not self.runs.seen:
                return WAKING
            runs, _ = self._tables()
            beyond = _quick([step.seconds - runs[step.width - 1] for step in self.woken])
        return min(max(beyond / runs[0], 0.0), 3 * WAKING)

    def reading(self, declared: float) -> float:
        """What it takes a drafter on a CPU to read a row's text before its first guess, in plain runs.

        ``declared`` until it is timed; no more than three times as much until it was timed often.
        """
        with self._lock:
            if not self.readings or not self.runs.seen:
                return declared
            (run, *_), drafts = self._tables()
            beyond = [(step.drafting or 0.0) - drafts[min(step.guesses, self.limit)] for step in self.readings]
            each = _quick([max(0.0, t) / len(step.read) for t, step in zip(beyond, self.readings, strict=True)]) / run
            return min(each, 3 * declared) if len(self.readings) < _OFTEN else each


@dataclass
class CostCurve:
    """Seconds by number: lower thirds where it was seen, in between and beyond in the declared shape, never falling."""

    declared: Sequence[float]  # in plain runs, by number
    seen: dict[int, deque[float]] = field(default_factory=dict)

    def add(self, number: int, seconds: float) -> None:
        if self.seen and len(self.seen.get(number, ())) < 3:
            expected = self._at(number, _pooled(self.seen), seconds)
            seconds = min(seconds, 3 * expected) if expected > 0 else seconds
        self.seen.setdefault(number, deque(maxlen=_MEMORY)).append(seconds)

    def forget(self) -> None:
        """What was seen once or twice and took more than twice what all others would let expect."""
        known = {number: seconds for number, seconds in self.seen.items() if len(seconds) > 2}
        if known:
            knots = CostCurve(self.declared, known).rising()
            self.seen = {n: s for n, s in self.seen.items() if n in known or min(s) <= 2 * self._at(n, knots, 0.0)}

    def table(self, numbers: range, unit: float, doubting: bool = False) -> list[float]:
        """For these numbers; ``unit``: seconds of a plain run, where nothing else tells.

        ``doubting``: not much more than declared is believed of what was seen once or twice: one slow step, and it
        would hardly be tried again.
        """
        knots = self.rising()
        if doubting and max(map(len, self.seen.values()), default=0) < _OFTEN:
            knots = [(number, min(value, _FAR * self.declared[number] * unit)) for number, value in knots]
        return [self._at(number, knots, unit) for number in numbers]

    def _at(self, number: int, knots: list[tuple[int, float]], unit: float) -> float:
        shape = self.declared
        if not knots:
            return shape[number] * unit
        right = next((k for k, (x, _) in enumerate(knots) if x >= number), len(knots))
        if right in (0, len(knots)):  # beyond: in proportion, or from nothing in declared steps
            known, value = knots[min(right, len(knots) - 1)]
            further = value + (shape[number] - shape[known]) * unit
            if known == 0:  # what asking takes says nothing of what guesses do
                return further
            if shape[known] <= 0:
                return value + shape[number] * unit
            scaled = value * shape[number] / shape[known]
            # Where the first guess is what is dear, one more than was timed takes less: it is tried, and timed.
            return min(scaled, further) if number == known + 1 and unit > 0 else scaled
        (a, low), (b, high) = knots[right - 1], knots[right]
        rise = shape[b] - shape[a]
        share = (shape[number] - shape[a]) / rise if rise > 0 else (number - a) / (b - a)
        return low + share * (high - low)

    def rising(self) -> list[tuple[int, float]]:
        """Lower thirds by number; where one is below its forerunner, both are the mean of the two (and so on).

        Beside numbers that were seen often, one that was seen once or twice and took much longer counts for nothing
        yet: it would be avoided for what else the machine did then, and never timed again.
        """
        often = {number: seconds for number, seconds in self.seen.items() if len(seconds) >= _OFTEN}
        if not any(often):
            return _pooled(self.seen)
        knots = _pooled(often)
        near = {n: s for n, s in self.seen.items() if n in often or min(s) <= _FAR * self._at(n, knots, 0.0)}
        return knots if len(near) == len(often) else _pooled(near)


def _quick(seconds: Sequence[float]) -> float:
    """The lower third: what else a machine does makes steps longer, never shorter, and half of them may be."""
    return sorted(seconds)[len(seconds) // 3]


def _pooled(seen: Mapping[int, Sequence[float]]) -> list[tuple[int, float]]:
    """Lower thirds by number, ascending, and never falling."""
    pools: list[tuple[float, float, list[int]]] = []  # weight, mean, numbers
    for number in sorted(seen):
        weight, mean, numbers = float(len(seen[number])), _quick(seen[number]), [number]
        while pools and pools[-1][1] > mean:
            before, other, others = pools.pop()
            mean = (before * other + weight * mean) / (before + weight)
            weight, numbers = before + weight, [*others, *numbers]
        pools.append((weight, mean, numbers))
    return [(number, mean) for _, mean, numbers in pools for number in numbers]
