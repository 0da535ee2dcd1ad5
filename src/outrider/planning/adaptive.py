"""The planner behind ``gamma="auto"``: what to ask for by what guesses cost and how often they were kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.prices import Ladder, Prices
from outrider.planning.acceptance import PATIENCE, Acceptance, Asking, Experience, Pause
from outrider.planning.setting import Setting
from outrider.planning.step_clock import Clock, Timing
from outrider.theory import Costs

_WORTHWHILE = 1.02
"""The least expected speed-up that guesses are made for where steps are timed: clocks are off by as much."""

_DOUBT = (1.5, 2.0)
"""The price of time where experience expects nothing of a drafter that may decline, for a row and for several: it must
be that sure, and of several rows the least lucky counts."""


_FEW = 8
"""Rows up to which each counts with what it has shown; of more, what all have shown so far does, as quickly."""

_WAKING = 8.0
"""What it costs, in plain runs, to ask a drafter again that was told nothing for a while, on a GPU."""

GRAPH_GAMMAS = (1, 2, 3, 4, 6)
"""Where steps are CUDA graphs, numbers of guesses that are worth a graph each, beside none and as many as may be."""


@dataclass
class _Run:
    """A run of a batch, for rows that decide together."""

    left: list[int]  # tokens that each row may still give, 0 for an empty slot
    waiting: bool  # others want a slot
    together: int | None = None  # guesses decided on for all rows


class Adaptive:
    """Plans by acceptance and cost: with ``experience`` for all rows of the batch together, else row by row."""

    def __init__(self, setting: Setting, costs: Costs | Clock, experience: Experience | None = None) -> None:
        self.setting, self.clock = setting, costs if isinstance(costs, Clock) else None
        self.experience = experience
        self.plans, self.declines = setting.plans, setting.declines
        # What is asked for and not drafted takes its time all the same where steps are replayed.
        few = sorted({0, setting.limit, *(number for number in GRAPH_GAMMAS if number < setting.limit)})
        self.choices: Sequence[int] = range(setting.limit + 1) if setting.splits else few
        self.ladder = costs.ladder() if isinstance(costs, Clock) else Ladder.of(costs, setting.limit)
        self.rows = [self._new_row() for _ in range(setting.rows)]
        self.asking = [Asking() if experience is None else experience.asking for _ in range(setting.rows)]
        self.rates = [1.0] * setting.rows
        self.weights: list[float] | None = None
        self.run = _Run([1] * setting.rows, waiting=False)  # the one that begins
        self.begun: deque[_Run] = deque()  # runs that were not learnt from yet, that one included
        self.kept = dict[int, int]()  # guesses kept in the oldest of them, by row

    def _new_row(self) -> Acceptance:
        if self.experience is not None:
            return self.experience.new_row()
        return Acceptance(self.setting.limit, self.setting.prior)

    def admit(self, row: int) -> None:
        self.rows[row] = self._new_row()
        if self.experience is None:
            self.asking[row] = Asking()
        else:
            self.experience.asking.vain = min(self.experience.asking.vain, PATIENCE - 1)  # it is asked at once

    @property
    def timed_by_clock(self) -> bool:
        """Whether a clock has a say: two calls with one seed may choose otherwise."""
        return self.clock is not None

    def begin(self, left: Sequence[int], waiting: bool) -> None:
        self.run = _Run(list(left), waiting)
        self.begun.append(self.run)

    def ended(self, left: Sequence[int]) -> None:
        run = self.begun.popleft()
        if self.experience is not None and run.together is not None:
            self.experience.asking.learn(run.together > 0, self._gained(run, left))
        self.kept = {}

    def _gained(self, run: _Run, left: Sequence[int]) -> bool:
        """Whether a run gained something for all: by every row that will be last, or by the mean while others wait."""
        most = max(run.left)
        last = [row for row, before in enumerate(run.left) if before == most and left[row]]
        if last and not run.waiting:
            return all(self.kept.get(row, 0) > 0 for row in last)
        return sum(self.kept.values()) > sum(map(bool, run.left)) * self._cost(min(1, self.setting.limit))

    def choose(self, row: int) -> int:
        if self.clock is not None and self.clock.wants_plain:
            return 0
        if self.experience is None:
            return self._decide([row])
        run = self.run
        if run.together is None:
            run.together = self._decide([row for row, tokens in enumerate(run.left) if tokens])
        most = run.left[row] - 1  # the last token of a text is the target's own
        return min(run.together, most) if self.setting.splits or most == 0 else run.together

    def _decide(self, rows: Sequence[int]) -> int:
        """For rows that decide together, or for one."""
        asking = self.asking[rows[0]]
        left = None if self.run.waiting or self.experience is None else [self.run.left[row] for row in rows]
        seen = [self.rows[row] for row in rows]
        if self.experience is not None and len(rows) > _FEW:
            seen, left = [self.experience.seen], None if left is None else [max(left)]
        rates = self.ladder.joint_rates([self._outlook(each) for each in seen], left)
        best = max(self.choices, key=rates.__getitem__)
        best = best if rates[best] >= (1.0 if self.clock is None else _WORTHWHILE) * rates[0] else 0
        self.weights = self._weigh(rows) if self.setting.splits else None
        self._price(rows, rates[best])
        if best:
            asking.pause = self._pause(best)
        elif self.declines and self.setting.splits and asking.open:
            if self.experience is not None:
                self._price(rows, _DOUBT[len(rows) > 1] * rates[0])
            return self.setting.limit
        elif self._could_pay() and asking.pause.over():
            best = max(self.choices[1:], key=rates.__getitem__, default=0)
            self._price(rows, rates[0] / 2)  # for once: a drafter that ends its drafts itself must try, too
            if self.experience is not None:
                return best  # what was found out in other rows is worth no long tries
        # One that ends its drafts itself, at these prices, does better than any number that could be chosen for it.
        return self.setting.limit if best and self.plans and self.setting.splits else best

    def _could_pay(self) -> bool:
        """Whether guesses that are all kept would gain something: else a try can teach nothing, as in a batch that
        fills the machine."""
        sure = [1.0] * self.setting.limit
        rates = self.ladder.rates(sure, sure)
        return max(rates[guesses] for guesses in self.choices) > rates[0]

    def _price(self, rows: Sequence[int], rate: float) -> None:
        """What time is worth to these rows."""
        for row in rows:
            self.rates[row] = rate

    def _weigh(self, rows: Sequence[int]) -> list[float] | None:
        """What a token of each row is worth to all: the same while others wait, else those count who will be last."""
        if self.experience is None:
            return None
        most = max(self.run.left)
        last = {row for row in rows if self.run.waiting or self.run.left[row] == most}
        return [(row in last) / len(last) for row in range(self.setting.rows)]

    def _pause(self, guesses: int) -> Pause:
        """As short as can be for a row by itself, which starts afresh; else as what a try costs lets it."""
        if self.experience is None:
            return Pause()
        return Pause.worth(self._cost(guesses) + (0.0 if self.setting.splits else _WAKING))

    def _cost(self, guesses: int) -> float:
        """What a run with so many takes beyond a plain one."""
        return self.ladder.steps[guesses] - self.ladder.runs[0]

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
        return Prices(self.ladder, self.rates, [row.alpha for row in self.rows], weights=self.weights)

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        self.rows[row].add(asked, accepted, examined)
        if self.experience is None:
            self.asking[row].learn(asked > 0, accepted > 0)
        else:
            self.experience.seen.add(asked, accepted, examined)
            self.kept[row] = accepted

    def timed(self, step: Timing) -> None:
        if self.clock is not None:
            self.clock.add(step)
            if self.clock.tells_more:
                self.ladder = self.clock.ladder()
