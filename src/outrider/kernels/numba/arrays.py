"""Arrays in compiled code: at whole lines of memory, and shared by threads that do not count who uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.tiles import compiled

_LINE = 64
"""Bytes that a cache reads and writes at once."""


@compiled
def aligned(count: int, dtype: Any) -> Any:
    """Numbers that begin at a line of memory. A vector or a row of AMX's that lies across two takes twice as long."""
    size = np.empty(0, dtype).itemsize
    whole = np.empty(count + _LINE // size, dtype)
    first = -whole.ctypes.data % _LINE // size
    return whole[first : first + count]


@compiled
def aligned_lines(rows: int, columns: int, dtype: Any) -> Any:
    """The same in two dimensions."""
    return aligned(rows * columns, dtype).reshape((rows, columns))


def _without_owners(context: Any, builder: Any, record: Any, found: Any) -> Any:
    for place, kind in enumerate(record.types):
        value = builder.extract_value(found, place)
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value)
            array.meminfo, array.parent = (cgutils.get_null_value(a.type) for a in (array.meminfo, array.parent))
            value = array._getvalue()
        elif isinstance(kind, types.BaseNamedTuple):
            value = _without_owners(context, builder, kind, value)
        found = builder.insert_value(found, value, place)
    return found


@intrinsic
def unowned(typing: Any, record: Any) -> Any:
    """The arrays of a named tuple, where compiled code does not count who uses them. The caller keeps them.

    Every part that compiled code takes of an array is counted in the array's owner. Threads that count in the same
    place wait for each other: on two cores a run of 128 tokens took a quarter longer.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _without_owners(context, builder, record, args[0])

    return record(record), generate
