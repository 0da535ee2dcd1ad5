"""How matrices of four to eight bits lie in panels of sixteen columns, for ``packed_products.py``.

Weights are those of the GGUF formats, bit for bit. A unit is 32 inputs of the 16 columns: four bits of each weight
first, then what lies above them in planes, then scales (and minima) of the unit. Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 have
scales in float16. The K formats have whole numbers of one byte there, and behind eight units the float16 that these
are multiplied with. A panel takes as many bytes as its columns took in the file; Q4_K and Q5_K, whose scales are of
six bits there, a thirtieth more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.kernels.numba.tiles import PANEL

UNIT = 32
"""Inputs of a unit."""

BLOCK = 256
"""Inputs of a block of a K format."""

BYTE_PLACES = tuple(4 * (column % 4) + column // 4 for column in range(PANEL))
"""Where a column's scale or minimum of one byte lies: vectors of four columns then get theirs by shifts."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Format:
    """One of the formats; a weight is scale * (whole number - offset), plus a minimum (less it, in K formats)."""

    name: str  # as GGUF calls it
    bits: int
    offset: int = 0
    minimum: bool = False  # whether there are minima
    blocks: bool = False  # a K format: scales are whole numbers, times a float16 for 256 inputs
    groups: int = 1  # with a scale of their own, in a unit

    @property
    def values(self) -> int:
        """Bytes of a unit's weights."""
        return UNIT * PANEL * self.bits // 8

    @property
    def unit(self) -> int:
        """Bytes of a unit."""
        each = PANEL if self.blocks else 2 * PANEL
        return self.values + each * (self.groups + self.minimum)

    @property
    def record(self) -> int:
        """Bytes of the fewest inputs that stand alone: a unit, or a block of eight."""
        return 8 * self.unit + 2 * PANEL * (1 + self.minimum) if self.blocks else self.unit

    @property
    def inputs(self) -> int:
        """Inputs of a record."""
        return BLOCK if self.blocks else UNIT

    def panel_bytes(self, inputs: int) -> int:
        return -(-inputs // self.inputs) * self.record


FORMATS = (
    Format("Q4_0", 4, offset=8),
    Format("Q4_1", 4, minimum=True),
    Format("Q5_0", 5, offset=16),
    Format("Q5_1", 5, minimum=True),
    Format("Q8_0", 8),
    Format("Q4_K", 4, minimum=True, blocks=True),
    Format("Q5_K", 5, minimum=True, blocks=True),
    Format("Q6_K", 6, offset=32, blocks=True, groups=2),
)
"""By their codes, in the panel tables of matrices (``packed_products.py``)."""

BFLOAT16 = len(FORMATS)
"""The code of a panel of bfloat16, as ``tiles.py`` reads it."""

CODES = {form.name: code for code, form in enumerate(FORMATS)}


def panel_table(codes: Sequence[int], inputs: int) -> Array:
    """The table of a matrix whose panels have these formats: int64 [panels, 2], as ``packed_products.py`` reads it.

    The first panel begins at the next multiple of 64 bytes behind the table.
    """
    for form in (FORMATS[code] for code in set(codes) - {BFLOAT16}):
        assert not form.blocks or inputs % BLOCK == 0, f"{form.name} has blocks of {BLOCK} inputs, not of {inputs}"
    each = [2 * PANEL * inputs if code == BFLOAT16 else FORMATS[code].panel_bytes(inputs) for code in codes]
    table = np.zeros((len(codes), 2), np.int64)
    table[:, 0], table[:, 1] = -(-table.nbytes // 64) * 64 + np.cumsum([0, *each[:-1]]), codes
    return table


@dataclass(frozen=True)
class QuantisedRows:
    """Some rows of a matrix in one of the formats, its whole numbers apart: R rows of I inputs."""

    form: Format
    whole: Array  # [R, I] bytes; signed for eight bits, else from 0 on
    scales: Array  # [R, groups]: float16, or bytes for K formats
    minima: Array | None = None  # [R, units], as scales are
    factors: Array | None = None  # [R, blocks] float16 of K formats: what scales are multiplied with
    minimum_factors: Array | None = None


def panels(rows: QuantisedRows) -> Array:
    """Whole panels of rows -> bytes [R / 16, panel_bytes]."""
    form = rows.form
    units = [_values(form, rows.whole), _by_unit(rows.scales, form.groups)]
    if rows.minima is not None:
        units.append(_by_unit(rows.minima, 1))
    found = np.concatenate(units, -1)  # [P, units, unit]
    if not form.blocks:
        return found.reshape(len(found), -1)
    parts = [found.reshape(len(found), -1, 8 * form.unit)]
    parts += [_by_unit(factors, 1) for factors in (rows.factors, rows.minimum_factors) if factors is not None]
    return np.concatenate(parts, -1).reshape(len(found), -1)


def _by_unit(numbers: Array, each: int) -> Array:
    """Numbers [R, U * each] -> bytes [P, U, each * 16 columns]."""
    split = numbers.reshape(-1, PANEL, numbers.shape[1] // each, each).transpose(0, 2, 3, 1)
    if numbers.itemsize == 1:
        split = split[..., np.argsort(BYTE_PLACES)]
    return np.ascontiguousarray(split).view(np.uint8).reshape(*split.shape[:2], -1)


def _values(form: Format, whole: Array) -> Array:
    """Whole numbers [R, I] -> bytes [P, units, values].

    By steps of four inputs: bytes [16 columns, 4 inputs]. Of less than eight bits, a byte has the low four of steps t
    and t + 4, and of the planes behind them each byte has the bits above of eight steps (five bits) or four (six).
    """
    outputs, inputs = whole.shape
    split = whole.view(np.uint8).reshape(outputs // PANEL, PANEL, inputs // UNIT, 8, 4)
    steps = np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4)).reshape(outputs // PANEL, inputs // UNIT, 8, 4 * PANEL)
    if form.bits == 8:
        return steps.reshape(*steps.shape[:2], -1)
    low = steps & 15
    parts: list[Array] = [(low[:, :, :4] | low[:, :, 4:] << 4).reshape(*steps.shape[:2], -1)]
    above = form.bits - 4
    for first in range(0, 8, 8 // above) if above else ():
        plane = np.zeros_like(steps[:, :, 0])
        for step in range(8 // above):
            plane |= steps[:, :, first + step] >> 4 << above * step
        parts.append(plane)
    return np.concatenate(parts, -1)
