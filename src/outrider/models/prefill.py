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
    lengths: Mapping[int, int], tokens: int, begins: Mapping[int, int] = MappingProxyType({})
) -> Iterator[PrefillRun]:
    """Rows that lie side by side together, about ``tokens`` tokens to a run.

    ``begins``: what need not be run of some rows, since it was copied. A row joins the run that it begins in, and runs
    the tokens before once more: they get the bits they have.
    """
    start = 0
    while left := [row for row, length in lengths.items() if length > start]:
        start = max(start, min(begins.get(row, 0) for row in left) // _GRANULE * _GRANULE)
        each = -(-max(tokens // len(left), 1) // _GRANULE) * _GRANULE
        rows = sorted(row for row in left if begins.get(row, 0) < start + each)
        for part in neighbours(rows):
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
