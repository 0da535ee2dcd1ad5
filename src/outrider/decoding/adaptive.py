"""The planner behind ``gamma="auto"``: what to ask for by what guesses cost and how often they were kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.decoding.acceptance import Acceptance, Asking, Experience, Pause
from outrider.decoding.clock import Clock, Timing
from outrider.prices import Ladder, Prices
from outrider.theory import Costs

if TYPE_CHECKING:
    from outrider.decoding.planner import Setting

_WORTHWHILE = 1.02
"""The least expected speed-up that guesses are made for where steps are timed: clocks are off by as much."""

_NEVER = 1e6
"""The price of time of a row whose tokens gain nothing."""


class Adaptive:
    """With ``experience`` for all rows of the batch together, else for each by itself."""

    def __init__(self, setting: Setting, costs: Costs | Clock, experience: Experience | None = None) -> None:
        self.setting, self.clock = setting, costs if isinstance(costs, Clock) else None
        self.experience = experience
        self.plans, self.declines = setting.plans, setting.declines
        # Asked for all or none where what it does not draft takes its time all the same.
        self.choices = (0, setting.limit) if self.plans and not setting.splits else range(setting.limit + 1)
        self.ladder = costs.ladder() if isinstance(costs, Clock) else Ladder.of(costs, setting.limit)
        self.rows = [self._new_row() for _ in range(setting.rows)]
        self.asking = [Asking() if experience is None else experience.asking for _ in range(setting.rows)]
        self.rates = [1.0] * setting.rows
        self.left, self.waiting = [1] * setting.rows, False
        self.together: int | None = None  # what was decided for all rows of the coming run

    def _new_row(self) -> Acceptance:
        if self.experience is not None:
            return self.experience.new_row()
        return Acceptance(self.setting.limit, self.setting.prior)

    def admit(self, row: int) -> None:
        self.rows[row] = self._new_row()
        if self.experience is None:
            self.asking[row] = Asking()
        else:
            self.experience.asking.vain = 0  # of the new text nothing is known

    def begin(self, left: Sequence[int], waiting: bool) -> None:
        self.left, self.waiting, self.together = list(left), waiting, None

    def choose(self, row: int) -> int:
        if self.clock is not None and self.clock.wants_plain:
            return 0
        if self.experience is None:
            return self._decide([row])
        if self.together is None:
            self.together = self._decide([row for row, tokens in enumerate(self.left) if tokens])
        return self.together

    def _decide(self, rows: Sequence[int]) -> int:
        """For rows that decide together, or for one."""
        asking = self.asking[rows[0]]
        asking.next_run()
        left = None if self.waiting or self.experience is None else [self.left[row] for row in rows]
        rates = self.ladder.joint_rates([self._outlook(self.rows[row]) for row in rows], left)
        best = max(self.choices, key=rates.__getitem__)
        best = best if rates[best] >= (1.0 if self.clock is None else _WORTHWHILE) * rates[0] else 0
        for row in rows:
            self.rates[row] = rates[best] if best else rates[0] * self._alone(row, rows)
        if best:
            asking.pause = self._pause()
        elif self.declines and asking.open:
            return self.setting.limit
        elif asking.pause.over():
            best = max(self.choices[1:], key=rates.__getitem__, default=0)
            for row in rows:  # time is cheap for once: a drafter that ends its drafts itself must try, too
                self.rates[row] = rates[0] / 2
        # One that ends its drafts itself, at these prices, does better than any number that could be chosen for it.
        return self.setting.limit if best and self.plans else best

    def _alone(self, row: int, rows: Sequence[int]) -> float:
        """What the time of a run with guesses of this row alone costs in its tokens: all rows take part in it."""
        if self.waiting or len(rows) == 1:
            return len(rows)
        last = max(self.left[other] for other in rows)  # who has more to give than others is who all wait for
        return sum(self.left[other] == last for other in rows) if self.left[row] == last else _NEVER

    def _pause(self) -> Pause:
        """As short as can be for a row by itself, which starts afresh; else as what a try costs lets it."""
        if self.experience is None:
            return Pause()
        return Pause.worth(self.ladder.steps[min(1, self.setting.limit)] - self.ladder.runs[0])

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
        self.asking[row].learn(asked, accepted)
        self.together = None
        if self.experience is not None:
            self.experience.seen.add(asked, accepted, examined)

    def timed(self, step: Timing) -> None:
        if self.clock is not None:
            self.clock.add(step)
            if self.clock.tells_more:
                self.ladder = self.clock.ladder()
