"""When another guess is worth its time: what a policy tells a drafter that ends its drafts by itself. Math only.

Where steps follow one another, tokens per time are greatest if every guess brings at least what its time brings
elsewhere: the chance that it is kept >= the rate so far * (time of the guess + time of one more row in the target's
run). This is the renewal-reward rule of optimal stopping; the rate is the speed that such drafts reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf, prod

from outrider.theory import Costs

Outlooks = Sequence[tuple[Sequence[float], Sequence[float]]]
"""Of each row: how often guess k is kept if it is made, and how often it is made, if those before it were kept."""


@dataclass(frozen=True)
class Ladder:
    """What steps with 0, 1, 2 ... guesses take, in units of a plain step."""

    runs: tuple[float, ...]  # the target's run alone
    drafts: tuple[float, ...]  # the drafter asked and giving so many; the first entry is asking alone

    @staticmethod
    def of(costs: Costs, limit: int) -> Ladder:
        numbers = range(limit + 1)
        return Ladder(tuple(costs.run(k + 1) for k in numbers), tuple(costs.drafts(k) for k in numbers))

    @cached_property
    def steps(self) -> tuple[float, ...]:
        """Run and draft together."""
        return tuple(run + draft for run, draft in zip(self.runs, self.drafts, strict=True))

    def with_prefill(self, takes: float) -> Ladder:
        """The same where a drafter must read the texts before its first guess; a copy needs no such prefill."""
        return Ladder(self.runs, (self.drafts[0], *(draft + takes for draft in self.drafts[1:])))

    def more(self, guesses: int) -> float:
        """What guess number ``guesses`` takes on top of those before it, the row it adds to the run included."""
        return self.steps[guesses] - self.steps[guesses - 1]

    def rates(self, chances: Sequence[float], shares: Sequence[float]) -> list[float]:
        """Tokens per time if up to 0, 1, 2 ... guesses are asked for (Theorem 3.8, with costs as they are).

        ``chances``: that guess k is kept if it is made and those before it were kept; ``shares``: that it is made
        at all, since a drafter may have none or stop.
        """
        tokens = kept = made = 1.0
        time = self.runs[0] + self.drafts[0]
        found = [1 / self.runs[0]]
        for number, (chance, share) in enumerate(zip(chances, shares, strict=True), 1):
            made *= share
            kept *= share * chance
            tokens += kept
            time += made * self.more(number)
            found.append(tokens / time)
        return found

    def joint_rates(self, rows: Outlooks, left: Sequence[int] | None = None) -> list[float]:
        """The same for rows of one batch, whose run is as wide as the widest of them: the mean over the rows.

        ``left``: tokens that each row still has to give. Then what counts is the time until the last row is done, and
        the rate is how many times as fast as without guesses that is.
        """
        if len(rows) == 1:  # whose tokens to give do not matter: asked before every run, it must not take long
            return self.rates(*rows[0])
        tokens, kept, made = ([1.0] * len(rows) for _ in range(3))
        time = self.runs[0] + self.drafts[0]
        found = [1 / self.runs[0]]
        for number in range(1, len(rows[0][0]) + 1):
            for row, (chances, shares) in enumerate(rows):
                made[row] *= shares[number - 1]
                kept[row] *= shares[number - 1] * chances[number - 1]
                tokens[row] += kept[row]
            time += (1 - prod(1 - chance for chance in made)) * self.more(number)  # the chance that anybody makes it
            found.append((sum(tokens) / len(rows) if left is None else _sooner(left, tokens)) / time)
        return found


def _sooner(left: Sequence[int], tokens: Sequence[float]) -> float:
    """Runs of one token each until the last row is done, over those with so many tokens of each row."""
    return max(left) / max(most / each for most, each in zip(left, tokens, strict=True))


@dataclass(frozen=True)
class Prices:
    """For the rows of a batch: what guesses take, and what time is worth."""

    ladder: Ladder
    rates: Sequence[float]  # of each row: tokens in the time of a plain step, at the speed it reaches
    alphas: Sequence[float]  # of each row: how often a guess is kept, as far as is known
    most: Sequence[int] | None = None  # of each row: guesses it may have; None: as many as are asked for
    weights: Sequence[float] | None = None  # of each row: what a token is worth to all; None: each is for itself

    def floors(self, row: int, most: int) -> list[float]:
        """The least chance that all guesses so far are kept at which guess 1, 2, ... ``most`` is worth making.

        Of guess k + 1 the drafter knows nothing yet, so alpha stands for its chance. And costs have steps: a guess
        that does not pay by itself may pay together with those behind it, chance * (a + ... + a^j) for j of them.
        A row has no use for guesses it may not have, though a neighbour may have more.
        """
        own = most if self.most is None else min(most, self.most[row])
        rate, alpha = self.rates[row], self.alphas[row]
        worth = list(accumulate(alpha**j + 1e-9 for j in range(1, own + 1)))
        steps, floors = self.ladder.steps, []
        for k in range(own):
            ahead = zip(steps[k + 1 : own + 1], worth, strict=False)
            floors.append(rate * min([(step - steps[k]) / gain for step, gain in ahead]))
        return floors + [inf] * (most - own)

    def best(self, row: int, chance: float, most: int, free: bool = False) -> tuple[int, float]:
        """How many guesses, each kept with this chance, gain most, and how many tokens they gain beyond their time.

        ``free``: making them takes no time (a copy), and only the run they are in grows.
        """
        gain = best = 0.0
        guesses = 0
        for number in range(1, most + 1):
            took = self.ladder.runs[number] - self.ladder.runs[number - 1] if free else self.ladder.more(number)
            gain += chance**number - self.rates[row] * took
            if gain > best:
                guesses, best = number, gain
        return guesses, best

    def together(self, chances: Sequence[float], copied: Sequence[int], drafted: Sequence[int]) -> int:
        """How many guesses at most gain something for the rows of a batch together, where ``weights`` say how.

        Each row would have so many copied or drafted guesses, each kept with its chance; the run is as wide as the
        widest row, and copies take no time but that.
        """
        assert self.weights is not None
        rate = sum(weight * rate for weight, rate in zip(self.weights, self.rates, strict=True))
        rows = list(zip(self.weights, chances, map(max, copied, drafted), strict=True))
        gain = best = 0.0
        guesses = 0
        for number in range(1, max(*copied, *drafted) + 1):
            free = number > max(drafted)
            took = self.ladder.runs[number] - self.ladder.runs[number - 1] if free else self.ladder.more(number)
            gain += sum(weight * chance**number for weight, chance, own in rows if own >= number) - rate * took
            if gain > best:
                guesses, best = number, gain
        return guesses
