"""Acceptance by guess number: runs recorded with one gamma, replayed with a smaller one. Math only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.errors import require
from outrider.trace import Record, ratio


@dataclass(frozen=True)
class DraftedRun:
    """One target run of one row: how many guesses it had, and how many were kept."""

    drafted: int
    accepted: int


def runs_of(records: Iterable[Record]) -> tuple[DraftedRun, ...]:
    """The runs of a trace. Guesses behind the end of the text count as drafted only."""
    return tuple(DraftedRun(len(r.drafted), max(0, min(r.accepted, r.emitted - 1))) for r in records)


@dataclass(frozen=True)
class GuessCounts:
    """How often guess 1, 2, ... was made and kept in so many runs with one gamma."""

    runs: int
    made: tuple[int, ...]
    kept: tuple[int, ...]
    examined: int  # guesses whose fate was decided: those that were kept, and the first of a run that was not

    @property
    def gamma(self) -> int:
        return len(self.made)

    @property
    def tokens(self) -> int:
        """Kept guesses and one token of the target's own in every run."""
        return sum(self.kept) + self.runs

    @property
    def chances(self) -> list[float]:
        """alpha by number: that guess k is made and kept, if those before it were kept. What theory takes."""
        reached = (self.runs, *self.kept)
        return [kept / before if before else 0.0 for kept, before in zip(self.kept, reached, strict=False)]

    @property
    def shares(self) -> list[float]:
        """The share of runs that have guess 1, 2, ...: a drafter may have none, or stop."""
        return [made / self.runs if self.runs else 0.0 for made in self.made]

    @property
    def alpha(self) -> float:
        """Over all numbers: kept guesses over examined ones."""
        return ratio(sum(self.kept), self.examined)


def counted(runs: Iterable[DraftedRun], gamma: int) -> GuessCounts:
    runs = list(runs)
    numbers = range(1, gamma + 1)
    return GuessCounts(
        len(runs),
        tuple(sum(run.drafted >= number for run in runs) for number in numbers),
        tuple(sum(run.accepted >= number for run in runs) for number in numbers),
        sum(min(run.accepted + 1, run.drafted) for run in runs),
    )


def together(parts: Sequence[GuessCounts]) -> GuessCounts:
    """The counts of several prompts, all with one gamma."""
    return GuessCounts(
        sum(part.runs for part in parts),
        tuple(map(sum, zip(*(part.made for part in parts), strict=True))),
        tuple(map(sum, zip(*(part.kept for part in parts), strict=True))),
        sum(part.examined for part in parts),
    )


def replayed(runs: Sequence[DraftedRun], recorded: int, gamma: int) -> list[DraftedRun]:
    """What runs recorded with ``recorded`` guesses would have been with ``gamma``, which is not more.

    Where guesses go on being right, a smaller gamma cuts one run into several, and the next run goes on where the
    text follows the same draft. At temperature 0 that is exact for drafters that guess by the text alone.
    """
    require(1 <= gamma <= recorded, f"gamma must be from 1 to {recorded}, which was recorded, got {gamma}")
    found: list[DraftedRun] = []
    for drafted, kept in _chains(runs, recorded):
        while kept >= 0:
            run = DraftedRun(min(gamma, drafted), min(gamma, kept))
            found.append(run)
            kept, drafted = kept - run.accepted - 1, max(0, drafted - run.accepted - 1)
    return found


def _chains(runs: Sequence[DraftedRun], recorded: int) -> list[tuple[int, int]]:
    """Guesses drafted and kept in a row, across runs that kept all they could have.

    The target's own token behind such a run counts as foreseen if the guess after it was kept. A draft that was cut off
    by gamma would have gone on: it has as many guesses as anybody may ask for.
    """
    chains, drafted, kept = [], 0, 0
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        drafted, kept = drafted + run.drafted, kept + run.accepted
        if run.accepted == recorded and following is not None and following.accepted > 0:
            drafted, kept = drafted + 1, kept + 1
            continue
        endless = run.drafted == recorded
        chains.append((drafted + recorded if endless else drafted, kept))
        drafted = kept = 0
    return chains
