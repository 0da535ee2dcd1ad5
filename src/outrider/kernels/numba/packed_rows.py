"""Single rows of a packed matrix (``packed_products.py``) in float32: embeddings, and the values that tests compare."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from outrider.kernels.numba.code_cache import on_disk
from outrider.kernels.numba.float16_products import wide
from outrider.kernels.numba.packed_formats import BFLOAT16, BYTE_PLACES, FORMATS, UNIT
from outrider.kernels.numba.packed_inputs import strict, units_of
from outrider.kernels.numba.tiles import PANEL, float_of_bits, pointer_to

_BITS, _OFFSETS, _GROUPS, _VALUES, _UNITS, _RECORDS, _MINIMA, _BLOCKS = (
    np.array([int(fact) for fact in facts])
    for facts in zip(
        *((f.bits, f.offset, f.groups, f.values, f.unit, f.record, f.minimum, f.blocks) for f in FORMATS), strict=True
    )
)


_PLACES = np.array(BYTE_PLACES)


@strict
def _half(at: int, column: int) -> Any:
    """The float16 of a column, of 16 at an address."""
    return wide(carray(pointer_to(at), (PANEL,), np.uint16)[column])


@strict
def _whole(unit: Any, code: int, column: int, j: int) -> Any:
    """The whole number of a column's input j of a unit."""
    step, place, above = j // 4, 4 * column + j % 4, _BITS[code] - 4
    if above == 4:
        return np.int32(np.int8(unit[4 * PANEL * step + place]))
    found = np.int32(unit[4 * PANEL * (step % 4) + place]) >> (step // 4 * 4) & 15
    if above:
        plane, bit = above * step // 8, above * step % 8
        found |= (np.int32(unit[4 * PANEL * (4 + plane) + place]) >> bit & ((1 << above) - 1)) << 4
    return found - _OFFSETS[code]


@strict
def unpack_row(matrix: int, row: int, out: Any) -> None:
    """A row of the matrix, which is a column of a panel -> out [inputs]; as the ``gguf`` package computes it."""
    inputs, column = len(out), row % PANEL
    table = carray(pointer_to(matrix), (row // PANEL + 1, 2), np.int64)
    here, code = matrix + table[row // PANEL, 0], table[row // PANEL, 1]
    if code == BFLOAT16:  # columns j and j + 8 are the two halves of a word
        bits = carray(pointer_to(here), (inputs, PANEL // 2, 2), np.uint16)
        for j in range(inputs):
            out[j] = float_of_bits(np.int32(np.uint32(bits[j, column % 8, column // 8]) << np.uint32(16)))
        return
    values, groups, minimum, factor, minimum_factor = (
        _VALUES[code],
        _GROUPS[code],
        np.float32(0),
        np.float32(0),
        np.float32(0),
    )
    for unit in range(units_of(inputs)):
        at = here + _RECORDS[code] * unit
        if _BLOCKS[code]:
            block = here + _RECORDS[code] * (unit // 8)
            at = block + _UNITS[code] * (unit % 8)
            factor = _half(block + 8 * _UNITS[code], column)
            if _MINIMA[code]:
                minimum_factor = _half(block + 8 * _UNITS[code] + 2 * PANEL, column)
        octets = carray(pointer_to(at), (_UNITS[code],), np.uint8)
        for j in range(min(UNIT, inputs - UNIT * unit)):
            group = j * groups // UNIT
            if _BLOCKS[code]:
                scale = factor * np.float32(np.int8(octets[values + PANEL * group + _PLACES[column]]))
                if _MINIMA[code]:
                    minimum = -(minimum_factor * np.float32(octets[values + PANEL * groups + _PLACES[column]]))
            else:
                scale = _half(at + values, column)
                if _MINIMA[code]:
                    minimum = _half(at + values + 2 * PANEL, column)
            out[UNIT * unit + j] = scale * np.float32(_whole(octets, code, column, j)) + minimum


@on_disk
def unpack_rows(matrix: int, rows: Any, out: Any) -> None:
    """Rows of the matrix -> out [len(rows), inputs]."""
    for place in range(len(rows)):
        unpack_row(matrix, rows[place], out[place])
