"""What a plan is asked to look at: numbers of guesses, sizes of batches, options of every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.checks import MOST_ROWS, check_whole
from outrider.errors import require


@dataclass(frozen=True)
class PlanSettings:
    """What is predicted, and how long is measured for it."""

    gammas: tuple[int, ...]  # candidates
    batches: tuple[int, ...] = (1,)  # requests at a time
    checks: tuple[int, ...] = ()  # gammas that are run for comparison beside the winner, with the first batch
    turns: int = 5  # of every width, for the cost of a run
    repeats: int = 1  # timed runs of each prompt; the median counts
    options: Mapping[str, Any] = field(default_factory=dict)  # of every call

    def __post_init__(self) -> None:
        _check_several("gamma", self.gammas, None)
        _check_several("batch", self.batches, MOST_ROWS)
        unknown = [gamma for gamma in self.checks if gamma not in self.gammas]
        known = ", ".join(map(str, self.gammas))
        require(not unknown, f"check names gamma {unknown}, which is not predicted; choose among {known}")
        check_whole("turns", self.turns, 1)
        check_whole("repeats", self.repeats, 1)

    @property
    def most(self) -> int:
        return max(self.gammas)

    @property
    def recorded(self) -> tuple[int, ...]:
        """Gammas that acceptance is recorded with: the largest, and one for the smaller ones, since a drafter that
        reads the target's activations guesses better behind a run than behind its own guesses."""
        return tuple(sorted({-(-self.most // 3), self.most}))

    def recorded_for(self, gamma: int) -> int:
        """The smallest recorded gamma that tells of this one."""
        return min(number for number in self.recorded if number >= gamma)


def _check_several(name: str, values: Sequence[int], most: int | None) -> None:
    require(len(values) > 0, f"{name} is empty; give at least one number")
    for value in values:
        check_whole(name, value, 1, most=most)
    given = ", ".join(map(str, values))
    require(len(set(values)) == len(values), f"{name}: values must differ from each other, got {given}")
