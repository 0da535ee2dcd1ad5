"""Arrays of compiled code: where they begin, and that nobody counts who uses those that threads share."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba")

from outrider.kernels.numba.arrays import aligned, aligned_lines, unowned
from outrider.kernels.numba.tiles import compiled


class Inner(NamedTuple):
    lines: np.ndarray[Any, Any]


class Outer(NamedTuple):
    count: int
    numbers: np.ndarray[Any, Any]
    inner: Inner


@compiled
def _kept(record: Outer, bare: bool) -> Any:
    """A part of an array, which counts as a user of it unless nobody owns it."""
    if bare:
        return unowned(record).inner.lines[1:]
    return record.inner.lines[1:]


@compiled
def _doubled(record: Outer) -> Any:
    record = unowned(record)
    for row in range(record.count):
        record.inner.lines[row] *= record.numbers[row]
    return record.inner.lines.sum()


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint8, np.int64])
@pytest.mark.parametrize("count", [1, 5, 64, 1000, 10**6])
def test_they_begin_at_a_line_of_memory(count: int, dtype: type) -> None:
    found = aligned(count, dtype)
    assert found.ctypes.data % 64 == 0 and found.shape == (count,) and found.dtype == dtype
    lines = aligned_lines(3, count, dtype)
    assert lines.ctypes.data % 64 == 0 and lines.shape == (3, count)


def test_what_is_written_is_seen_and_nobody_is_counted() -> None:
    """Catches an array of an inner tuple that keeps its owner, and one whose address or shape is lost."""
    lines = np.ones((3, 4), np.float32)
    record = Outer(3, np.array([1.0, 2.0, 3.0], np.float32), Inner(lines))
    assert _doubled(record) == lines.sum() == 24
    before = sys.getrefcount(lines)
    owned, bare = _kept(record, False), _kept(record, True)
    assert bare.ctypes.data == owned.ctypes.data == lines[1:].ctypes.data and bare.shape == (2, 4)
    assert sys.getrefcount(lines) == before + 1  # by the owned part
    assert bare.base is None
