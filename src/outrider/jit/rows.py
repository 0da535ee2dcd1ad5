"""Single rows of a table of embeddings, as compiled code reads them: a table of float32, or panels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from outrider.jit.tiles import PANEL, compiled, float_of_bits, pointer_to


class Table(NamedTuple):
    """Embeddings [V, size] at an address."""

    place: int
    size: int
    panels: bool  # as ``tiles.py`` reads weights; if not, rows of float32


@compiled
def look_up(table: Table, token: int, out: Any) -> None:
    """The row of a token -> out [size]."""
    if not table.panels:
        row = carray(pointer_to(table.place + 4 * table.size * token), (table.size,), np.float32)
        for j in range(table.size):
            out[j] = row[j]
        return
    start = table.place + 2 * PANEL * table.size * (token // PANEL)
    bits = carray(pointer_to(start), (table.size, PANEL // 2, 2), np.uint16)
    for j in range(table.size):  # columns j and j + 8 are the two halves of a word
        out[j] = float_of_bits(np.int32(np.uint32(bits[j, token % 8, token % PANEL // 8]) << np.uint32(16)))
