"""The planner behind ``gamma="auto"``: what to ask for by what guesses cost and how often they were kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.core.prices import Ladder, Prices
from outrider.planning.acceptance import PATIENCE, Acceptance, Asking, Experience, Pause
from outrider.planning.setting import RESTS_AFTER, Setting
from outrider.planning.step_clock import WAKING, Clock, Timing
from outrider.theory import Costs

_WORTHWHILE = 1.02
"""The least expected speed-up that guesses are made for where steps are timed: clocks are off by as much."""

_DOUBT = (1.5, 2.0)
"""The price of time where experience expects nothing of a drafter that may decline, for a row and for several: it must
be that sure, and of several rows the least lucky counts."""


_FEW = 8
"""Rows that are looked at. Of more, those count that will be last; or while others wait, what all rows have shown. On a
GPU, where beginning to guess is dear, what a few rows have shown counts as it does of many: as far as rows differ."""

_READING = 2.0
"""What a draft's prefill of all texts takes on a CPU, in guesses, until it is timed: a model reads a short prompt in
little more than a run. (A head took about forty for 32 prompts.)"""

_LOOKS = 8
"""Runs after which it is looked again what guesses would bring, while nobody guesses. A row that decides for itself and
whose text the drafter has read knows without looking."""

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

    def __init__(
        self, setting: Setting, costs: Costs | Callable[[int], Clock], experience: Experience | None = None
    ) -> None:
        """costs: given, or the clock of runs with so many rows; 0: with all slots."""
        self.setting, self.clock_of = setting, None if isinstance(costs, Costs) else costs
        self.clock = None if self.clock_of is None else self.clock_of(0)
        self.experience = experience
        self.plans, self.declines = setting.plans, setting.declines
        # What is asked for and not drafted takes its time all the same where steps are replayed.
        few = sorted({0, setting.limit, *(number for number in GRAPH_GAMMAS if number < setting.limit)})
        self.choices: Sequence[int] = range(setting.limit + 1) if setting.splits else few
        self.ladder = Ladder.of(costs, setting.limit) if isinstance(costs, Costs) else costs(0).ladder()
        self.waking = WAKING if self.clock is None else self.clock.waking()
        self.reading = self._reading()
        self.unread = set[int]()  # on a CPU: rows whose texts the drafter has not read yet
        self.exploring = False  # a drafter is asked of which nothing is expected: it is not to read texts for that
        self.rows = [self._new_row() for _ in range(setting.rows)]
        self.asking = [Asking() if experience is None else experience.asking for _ in range(setting.rows)]
        self.rates = [1.0] * setting.rows
        self.weights: list[float] | None = None
        self.run = _Run([1] * setting.rows, waiting=False)  # the one that begins
        self.begun: deque[_Run] = deque()  # runs that were not learnt from yet, that one included
        self.kept = dict[int, int]()  # guesses kept in the oldest of them, by row
        self.told: list[tuple[int, int, int]] = []  # what its rows have shown
        self.ended_rows: set[int] = set()  # rows that have ended
        self.idle = RESTS_AFTER  # runs since guesses were asked for
        self.single_rates = dict[int, list[float]]()  # of a row by itself, until something new is known
        self.payable: tuple[Ladder, bool] | None = None  # whether guesses could pay at these costs
        self.cached_rates: list[float] | None = None  # what was expected of guesses at the last look
        self.cached_for = 0  # runs since then

    def _new_row(self) -> Acceptance:
        if self.experience is not None:
            return self.experience.new_row()
        return Acceptance(self.setting.limit, self.setting.prior)

    def admit(self, row: int) -> None:
        self.rows[row], self.cached_rates = self._new_row(), None
        self.unread.add(row)
        self.single_rates.pop(row, None)
        self.ended_rows.discard(row)
        if self.experience is None:
            self.asking[row] = Asking()
        else:
            self.experience.asking.vain = min(self.experience.asking.vain, PATIENCE - 1)  # it is asked at once

    @property
    def timed_by_clock(self) -> bool:
        """Whether a clock has a say: two calls with one seed may choose otherwise."""
        return self.clock is not None

    def begin(self, left: Sequence[int], waiting: bool) -> None:
        self.idle = 0 if self.run.together else self.idle + 1
        self.run = _Run(list(left), waiting)
        self.begun.append(self.run)
        if self.clock_of is not None and (clock := self.clock_of(sum(map(bool, left)))) is not self.clock:
            self.clock, self.cached_rates = clock, None
            self._set_ladder(clock)

    def ended(self, left: Sequence[int]) -> None:
        run = self.begun.popleft()
        if self.experience is not None and run.together is not None:
            self.experience.asking.learn(run.together > 0, self._gained(run, left))
            for row, before in enumerate(run.left):
                if before and not left[row] and row not in self.ended_rows:
                    self.ended_rows.add(row)  # a run that was launched ahead ends without it once more
                    self.experience.done(self.rows[row])
        if self.experience is not None:
            self.experience.seen.add_all(self.told)
        self.kept, self.told = {}, []

    def _gained(self, run: _Run, left: Sequence[int]) -> bool:
        """Whether a run gained something for all: by every row that will be last, or by the mean while others wait."""
        most = max(run.left)
        last = [row for row, before in enumerate(run.left) if before == most and left[row]]
        if last and not run.waiting:
            return all(self.kept.get(row, 0) > 0 for row in last)
        return sum(self.kept.values()) > sum(map(bool, run.left)) * self._cost(min(1, self.setting.limit))

    def choose(self, row: int) -> int:
        run = self.run
        if run.together == 0 or (self.clock is not None and self.clock.wants_plain):
            return 0
        if self.experience is None:
            return self._decide([row])
        if run.together is None:
            run.together = self._decide([row for row, tokens in enumerate(run.left) if tokens])
        most = run.left[row] - 1  # the last token of a text is the target's own
        return min(run.together, most) if self.setting.splits or most == 0 else run.together

    def _decide(self, rows: Sequence[int]) -> int:
        """For rows that decide together, or for one."""
        guesses = self._best_gamma(rows)
        self.weights = self._weigh(rows) if guesses and self.setting.splits else None
        return guesses

    def _rates(self, rows: Sequence[int]) -> list[float]:
        """How fast these rows would be with 0, 1, 2 ... guesses."""
        left = None if self.run.waiting or self.experience is None else [self.run.left[row] for row in rows]
        if self.experience is None or (len(rows) <= _FEW and (self.setting.splits or left is None)):
            outlooks = [(self.rows[row].chances(), self.rows[row].shares()) for row in rows]
        elif left is None:
            outlooks = [(self.experience.seen.chances(), self.experience.seen.shares())]
        else:
            last = sorted(rows, key=lambda row: -self.run.left[row])[:_FEW]
            outlooks = [self.experience.slowest(self.rows[row], len(rows)) for row in last]
            left = [self.run.left[row] for row in last]
        rates = self.ladder.joint_rates([self._in_time(*outlook) for outlook in outlooks], left)
        first = self._first_guess()
        if left is None or not first:
            return rates
        return [rates[0], *(rate / (1 + rate * first / max(left)) for rate in rates[1:])]

    def _first_guess(self) -> float:
        """What guesses take this once, in plain runs: the draft's prefill of texts it has not read, or waking it."""
        if self.setting.splits:
            return self.reading * sum(self.run.left[row] > 0 for row in self.unread)
        return self.waking if self.idle >= RESTS_AFTER else 0.0

    def _reading(self) -> float:
        """What a draft's prefill of one text takes, in plain runs; costs that are given are all there is."""
        if self.clock is None or self.setting.limit == 0:
            return 0.0
        guess = self.ladder.drafts[1] - self.ladder.drafts[0]
        return self.clock.reading(_READING * guess / self.setting.rows)

    def _recent_rates(self, rows: Sequence[int]) -> list[float]:
        """The same; where nobody guesses, as it was a few runs ago: looking takes its time, and a step does not take
        long."""
        # Of a row that decides for itself nothing counts but its own text: not what is left of it, nor other rows.
        alone = len(rows) == 1 and self.setting.splits and not self._first_guess()
        if self.experience is None or alone:
            if rows[0] not in self.single_rates:
                self.single_rates[rows[0]] = self._rates(rows)
            return self.single_rates[rows[0]]
        if self.cached_rates is None or self.idle == 0 or self.cached_for >= _LOOKS:
            self.cached_rates, self.cached_for = self._rates(rows), 0
        self.cached_for += 1
        return self.cached_rates

    def _best_gamma(self, rows: Sequence[int]) -> int:
        """How many guesses, by what they are expected to gain or to teach."""
        self.exploring = False
        asking, rates = self.asking[rows[0]], self._recent_rates(rows)
        best = max(self.choices, key=rates.__getitem__)
        best = best if rates[best] >= (1.0 if self.clock is None else _WORTHWHILE) * rates[0] else 0
        self._price(rows, rates[best])
        if best:
            asking.pause = self._pause(best)
        elif self.declines and self.setting.splits and asking.open:
            if self.experience is not None:
                self._price(rows, _DOUBT[len(rows) > 1] * rates[0])
                self.exploring = True
            return self.setting.limit
        elif self._could_pay() and asking.pause.over(self._pause(1).length):
            best = max(self.choices[1:], key=rates.__getitem__, default=0)
            self._price(rows, rates[0] / 2)  # for once: a drafter that ends its drafts itself must try, too
            if self.experience is not None:
                return best  # what was found out in other rows is worth no long tries
        # One that ends its drafts itself, at these prices, does better than any number that could be chosen for it.
        return self.setting.limit if best and self.plans and self.setting.splits else best

    def _could_pay(self) -> bool:
        """Whether guesses that are all kept would gain something: else a try can teach nothing, as in a batch that
        fills the machine."""
        if self.payable is None or self.payable[0] is not self.ladder:
            sure = [1.0] * self.setting.limit
            rates = self.ladder.rates(sure, sure)
            self.payable = self.ladder, max(rates[guesses] for guesses in self.choices) > rates[0]
        return self.payable[1]

    def _set_ladder(self, clock: Clock) -> None:
        self.ladder, self.waking = clock.ladder(), clock.waking()
        self.reading = self._reading()
        self.single_rates.clear()
        self.cached_rates = None

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
        return Pause.worth(self._cost(guesses) + (self._first_guess() if self.setting.splits else self.waking))

    def _cost(self, guesses: int) -> float:
        """What a run with so many takes beyond a plain one."""
        return self.ladder.steps[guesses] - self.ladder.runs[0]

    def _in_time(self, chances: list[float], shares: list[float]) -> tuple[list[float], list[float]]:
        """By depth: how often a guess is kept, and how often it takes time."""
        if self.setting.splits:
            return chances, shares
        # A guess that is not made takes its time all the same: as if it were made and not kept.
        return [chance * share for chance, share in zip(chances, shares, strict=True)], [1.0] * len(shares)

    @property
    def prices(self) -> Prices | None:
        if not self.setting.splits:
            return None
        ladder = self.ladder.with_prefill(self._first_guess()) if self.exploring else self.ladder
        return Prices(ladder, self.rates, [row.alpha for row in self.rows], weights=self.weights)

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        if self.experience is None:
            self.asking[row].learn(asked > 0, accepted > 0)
        if not asked:  # nothing to learn: with many rows that is to take no time
            return
        self.single_rates.pop(row, None)
        self.rows[row].add(asked, accepted, examined)
        if self.experience is not None:
            self.told.append((asked, accepted, examined))
            self.kept[row] = accepted

    def timed(self, step: Timing) -> None:
        if self.clock_of is None:
            return
        clock = self.clock_of(step.rows)  # the run that begins next may have other rows
        clock.add(step)
        self.unread = self.unread - step.read
        resting = self.experience is not None and self.idle >= RESTS_AFTER  # rows by themselves are not counted
        if clock is self.clock and (clock.tells_more(resting) or step.waking or step.read):
            self._set_ladder(clock)
