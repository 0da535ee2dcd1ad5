"""What a hierarchy gains (Tulsian et al. 2024): a middle model drafts for the target, and a lower drafter for it.

To the target a hierarchy is a drafter like any other. Only its guesses cost less than the middle model's own: a run of
that model checks guesses of the lower drafter and gives several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outrider.errors import require
from outrider.theory.gains import ByNumber, Costs, expected_tokens, optimal_gamma, speedup


@dataclass(frozen=True)
class HierarchyForecast:
    """The best that a hierarchy does, beside the best of both pairs it is made of."""

    guesses: int  # of the lower drafter, for each run of the middle model; 0: the middle model writes by itself
    gamma: int  # of the hierarchy, for each run of the target
    speedup: float
    middle_alone: float  # speed-up, at its own best gamma
    lower_alone: float

    @property
    def gain(self) -> float:
        """Over the better pair, or plain decoding if that is faster still."""
        return self.speedup / max(1.0, self.middle_alone, self.lower_alone)


@dataclass(frozen=True)
class Hierarchy:
    """Costs are in plain runs of the target."""

    alpha: float  # how often the target keeps a guess of the middle model
    c: float  # a plain run of the middle model
    lower_alpha: float  # how often the middle model keeps a guess of the lower drafter
    lower_c: float = 0.0  # a guess of the lower drafter
    lower_alone: float | None = None
    """How often the target would keep a guess of the lower drafter. None: alpha times lower_alpha, a low guess: tokens
    that are easy are easy for all three."""
    target_widths: ByNumber = 1.0  # runs of the target by width
    middle_widths: ByNumber = 1.0  # runs of the middle model by width, in plain runs of its own

    @property
    def assumed_alone(self) -> float:
        return self.alpha * self.lower_alpha if self.lower_alone is None else self.lower_alone

    def middle_runs(self, guesses: int, most: int) -> list[float]:
        """Expected runs of the middle model until it has given 0, 1, ... tokens; more than that is thrown away."""
        chances, runs = emitted(self.lower_alpha, guesses), [0.0]
        for wanted in range(1, most + 1):
            runs.append(1 + sum(p * runs[max(0, wanted - tokens)] for tokens, p in enumerate(chances, 1)))
        return runs

    def costs(self, guesses: int, most: int) -> Costs:
        """Of the hierarchy as a drafter, up to ``most`` guesses for the target."""
        run = self.c * Costs(self.middle_widths).run(guesses + 1) + guesses * self.lower_c
        runs = self.middle_runs(guesses, most)
        return Costs(self.target_widths, [run * max(0.0, b - a) for a, b in pairwise(runs)])

    def speedup(self, guesses: int, gamma: int) -> float:
        """Over plain decoding: Theorem 3.8 with what the guesses cost."""
        return speedup(self.alpha, gamma, self.costs(guesses, gamma))

    def best(self, most: int, most_lower: int = 8) -> HierarchyForecast:
        """With at most so many guesses at each level."""
        require(most_lower >= 1, f"most_lower must be 1 or more guesses, got {most_lower}")
        found = []
        for guesses in range(1, most_lower + 1):
            costs = self.costs(guesses, most)
            gamma = optimal_gamma(self.alpha, costs, most)
            found.append((speedup(self.alpha, gamma, costs), guesses, gamma))
        fastest, guesses, gamma = max(found, key=lambda one: one[0])
        return HierarchyForecast(
            guesses,
            gamma,
            fastest,
            _best(self.alpha, self.costs(0, most), most),
            _best(self.assumed_alone, Costs(self.target_widths, self.lower_c), most),
        )


def emitted(alpha: float, guesses: int) -> Sequence[float]:
    """The chance that a run which checks so many guesses gives 1, 2, ... guesses + 1 tokens."""
    require(0 <= alpha <= 1, f"alpha must be between 0 and 1, got {alpha}")
    kept = [alpha**number for number in range(guesses + 1)]
    return [a - b for a, b in pairwise([*kept, 0.0])]


def _best(alpha: float, costs: Costs, most: int) -> float:
    gamma = optimal_gamma(alpha, costs, most)
    return expected_tokens(alpha, gamma) / costs.step(gamma)
