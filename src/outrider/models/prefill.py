"""Which tokens of which rows go through the model together when prompts are prefilled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_GRANULE = 16
"""Tokens of a row in a run of several, in multiples of this: rows whose prompts end drop out of the next run."""


@dataclass(frozen=True)
class PrefillRun:
    """A rectangle of tokens: rows that lie side by side, and the positions run in each of them."""

    rows: range
    positions: range


def row_by_row(lengths: Mapping[int, int], chunk: int) -> Iterator[PrefillRun]:
    """Every row by itself, in whole chunks: constant shapes. ``lengths``: tokens to run, by row."""
    for row, length in lengths.items():
        for start in range(0, length, chunk):
            yield PrefillRun(range(row, row + 1), range(start, start + chunk))


def side_by_side(
    lengths: Mapping[int, int], tokens: int, copied: Mapping[int, int] = MappingProxyType({})
) -> Iterator[PrefillRun]:
    """Rows that lie side by side together, about ``tokens`` tokens to a run.

    ``copied``: how many tokens of some rows need not be run. Such a row joins the run that its next token is in, and
    what that run has before the token is run once more: it gets the bits it has.
    """
    start = 0
    while left := {row: copied.get(row, 0) for row, length in lengths.items() if length > start}:
        start = max(start, min(left.values()) // _GRANULE * _GRANULE)
        each = _GRANULE
        for _ in range(2):  # those that join make the run shorter, and some of them join a later one then
            joined = sum(begin < start + each for begin in left.values())
            each = -(-max(tokens // joined, 1) // _GRANULE) * _GRANULE
        for part in neighbours(sorted(row for row, begin in left.items() if begin < start + each)):
            longest = max(lengths[row] for row in part)
            yield PrefillRun(part, range(start, min(start + each, longest)))
        start += each


def neighbours(rows: list[int]) -> Iterator[range]:
    """Ascending numbers as ranges without gaps."""
    begin = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[end - 1] + 1:
            yield range(rows[begin], rows[end - 1] + 1)
            begin = end
