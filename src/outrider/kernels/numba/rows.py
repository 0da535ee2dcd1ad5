"""Embedding lookup in compiled code: single rows of a float32 table, or of weights stored in panels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from outrider.kernels.numba.float16_products import wide
from outrider.kernels.numba.packed_rows import unpack_row
from outrider.kernels.numba.tiles import PANEL, compiled, float_of_bits, pointer_to

ROWS, PANELS, HALF_PANELS, PACKED_PANELS, FLOAT_PANELS, AMX_PANELS = range(6)
"""Float32 one row behind the other; bfloat16 as ``tiles.py`` reads it; float16 as ``float16_products.py`` does; four
to eight bits as ``packed_products.py`` does; float32 as ``tiles.py`` reads it; bfloat16 as ``amx_products.py`` does."""


class Table(NamedTuple):
    """Embeddings [V, size] at an address."""

    place: int
    size: int
    kind: int = ROWS
    inputs: int = 0  # of a panel: size, and what it was filled up with
    scale: float = 1.0  # what numbers of float16 are to be multiplied with


@compiled
def look_up(table: Table, token: int, out: Any) -> None:
    """The row of a token -> out [size]."""
    if table.kind == ROWS:
        row = carray(pointer_to(table.place + 4 * table.size * token), (table.size,), np.float32)
        for j in range(table.size):
            out[j] = row[j]
        return
    if table.kind == PACKED_PANELS:
        unpack_row(table.place, token, out[: table.size])
        return
    if table.kind == FLOAT_PANELS:
        panel = table.place + 4 * PANEL * table.inputs * (token // PANEL)
        columns = carray(pointer_to(panel), (table.inputs, PANEL), np.float32)
        for j in range(table.size):
            out[j] = columns[j, token % PANEL]
        return
    start = table.place + 2 * PANEL * table.inputs * (token // PANEL)
    bits = carray(pointer_to(start), (table.inputs, PANEL), np.uint16)
    if table.kind == HALF_PANELS:
        for j in range(table.size):
            out[j] = wide(bits[j, token % PANEL]) * np.float32(table.scale)
        return
    if table.kind == AMX_PANELS:
        for j in range(table.size):
            pair = bits[j // 2 * 2 + token % PANEL // 8, 2 * (token % 8) + j % 2]
            out[j] = float_of_bits(np.int32(np.uint32(pair) << np.uint32(16)))
        return
    column = 2 * (token % 8) + token % PANEL // 8  # columns j and j + 8 are the two halves of a word
    for j in range(table.size):
        out[j] = float_of_bits(np.int32(np.uint32(bits[j, column]) << np.uint32(16)))
