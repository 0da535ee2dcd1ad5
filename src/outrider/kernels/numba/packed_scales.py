"""What follows AMX's products of packed weights (``packed_amx.py``): whole sums are scaled and added up, by vectors.

The operations in float32 are those of ``packed_products.py``, in the same order.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from outrider.kernels.numba.packed_blocks import (
    AVAILABLE,
    BLOCK_ROOM,
    FLOATS,
    LINE,
    MINIMA,
    SHIFTS,
    SUMS,
    UNIT_ROOM,
    VALUES,
    every,
    store,
)
from outrider.kernels.numba.packed_dots import vectors
from outrider.kernels.numba.packed_formats import UNIT
from outrider.kernels.numba.tiles import loop, number, pointer
from outrider.runtime import cpu

SUM_BYTES = 16 * LINE
"""Of sixteen rows of a panel's sums, as AMX writes them."""


class _Rows:
    """Emits what scales the sums of some units or blocks and adds them to a row's totals."""

    def __init__(self, builder: Any, count: int, blocks: bool, minimum: bool, room: Any) -> None:
        self.builder, self.v, self.count = builder, vectors(builder, cpu.facts()), count
        self.blocks, self.minimum = blocks, minimum
        size, behind = (BLOCK_ROOM, MINIMA + 4 * LINE) if self.blocks else (UNIT_ROOM, VALUES)
        starts = [size * k for k in range(count)]
        self.scales = [self.load(room, start + behind, FLOATS) for start in starts]
        if self.minimum:
            self.minima = [self.load(room, start + behind + LINE, FLOATS) for start in starts]
        if self.blocks and self.minimum:
            self.pairs = [[self.load(room, start + MINIMA + LINE * k, SUMS) for k in range(4)] for start in starts]

    def load(self, at: Any, offset: int, kind: Any, align: int = LINE) -> Any:
        return self.builder.load(pointer(self.builder, at, number(offset), kind), align=align)

    def _everywhere(self, at: Any, offset: int, kind: Any) -> Any:
        return self.v.everywhere(self.load(at, offset, kind.element, 2), kind)

    def _whole(self, sums: Any, place: int) -> Any:
        if not self.blocks:
            return self.load(sums, SUM_BYTES * place, SUMS)
        low, high = (self.load(sums, SUM_BYTES * (2 * place + part), SUMS) for part in range(2))
        return self.builder.add(low, self.builder.shl(high, every(SUMS, SHIFTS[self.minimum])))

    def _minima(self, place: int, scale: Any, shorts: Any, floats: Any, total: Any) -> Any:
        builder = self.builder
        if not self.blocks:
            given = self._everywhere(floats, 4 * place, FLOATS)
            return self.v.fma(given, builder.fmul(self.minima[place], scale), total)
        whole = every(SUMS, 0)
        for pair in range(4):
            given = self._everywhere(shorts, 16 * place + 4 * pair, SUMS)
            whole = self.v.dot_pairs(whole, given, self.pairs[place][pair])
        factor = builder.fmul(self.minima[place], builder.fneg(scale))
        return self.v.fma(builder.sitofp(whole, FLOATS), factor, total)

    def row(self, sums: Any, shorts: Any, floats: Any, scales: Any, total: Any) -> Any:
        """total + what a row's inputs give; by the addresses of sums, and of a row's numbers for every unit."""
        builder = self.builder
        for place in range(self.count):
            scale = self._everywhere(scales, (32 if self.blocks else 4) * place, FLOATS)
            whole = builder.sitofp(self._whole(sums, place), FLOATS)
            total = self.v.fma(whole, builder.fmul(self.scales[place], scale), total)
            if self.minimum:
                total = self._minima(place, scale, shorts, floats, total)
        return total


def scaled(count: int, blocks: bool, minimum: bool) -> Any:
    """A function (sums, room, x, x's stride, units of x, first unit, first row, rows, out, out's stride), in bytes."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if not AVAILABLE:
            return context.get_dummy_value()
        sums, room, x, stride, units, first, begin, rows, out, out_stride = args
        scale = _Rows(builder, count, blocks, minimum, room)
        starts = [
            builder.add(builder.mul(units, number(start)), builder.mul(first, number(size)))
            for start, size in ((UNIT, 2), (UNIT + 4, 4), (UNIT + 8, 4))
        ]
        row, _, end = loop(builder, builder.sub(rows, begin), 1, [])
        row = builder.add(row, begin)
        line = builder.add(x, builder.mul(stride, row))
        to = builder.add(out, builder.mul(row, out_stride))
        shorts, floats, scales = (builder.add(line, start) for start in starts)
        here = builder.add(sums, builder.mul(row, number(LINE)))
        store(builder, scale.row(here, shorts, floats, scales, scale.load(to, 0, FLOATS, 4)), to, 0, 4)
        end([])
        return context.get_dummy_value()

    @intrinsic
    def generated(
        typing: Any, sums: Any, room: Any, x: Any, stride: Any, units: Any, first: Any, begin: Any, rows: Any, out: Any,
        out_stride: Any,
    ) -> Any:  # fmt: skip
        return types.void(*[types.int64] * 10), generate

    return generated
