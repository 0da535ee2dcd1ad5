"""Products of attention by AMX, with keys and values in bfloat16, compiled by numba.

Queries and weights are split into two bfloat16 numbers each, as the inputs of ``amx_products.py`` are. Every product is
one sum in a fixed order, whatever the number of rows beside it: batch-invariant.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.kernels.numba.amx_products import CHUNK, PARTS, ROWS, at_address, call_amx, register
from outrider.kernels.numba.tiles import PANEL, WORD, by_count, compiled, loop, number, pointer

MOST_TILES = 4
"""Tiles of sixteen rows whose sums are in registers."""

_INPUTS, _PANEL = (4, 5), 6
"""Registers: of rows, by turns, and of a panel."""

_LINE = ir.VectorType(ir.IntType(16), PANEL)


@intrinsic
def _pair_lines(typing: Any, address: Any, stride: Any, lines: Any, to: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        address, stride, lines, to = args
        order = [lane for pair in range(PANEL) for lane in (pair, PANEL + pair)]
        by_turns = ir.Constant(ir.VectorType(WORD, 2 * PANEL), order)
        line, _, end = loop(builder, lines, 2, [])
        first = builder.add(address, builder.mul(line, stride))
        pair = [
            builder.load(pointer(builder, at, number(0), _LINE), align=2) for at in (first, builder.add(first, stride))
        ]
        found = builder.shuffle_vector(*pair, by_turns)
        builder.store(found, pointer(builder, to, builder.mul(line, number(2 * PANEL)), found.type), align=2)
        end([])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@compiled
def pair_lines(address: int, stride: int, lines: int, to: int) -> None:
    """Lines of sixteen numbers, ``stride`` bytes apart -> a panel as AMX reads it [lines / 2, 16, 2]."""
    _pair_lines(address, stride, lines, to)


def _tiles(count: int) -> Any:
    """A function (panel, x, x's stride, bytes of a part, chunks, out, out's stride): addresses, and strides in bytes.

    x, ``count`` times sixteen rows, each its parts one behind the other, times a panel -> out [16 * count, 16].
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        panel, x, x_stride, part_bytes, chunks, out, out_stride = args
        for tile in range(count):
            call_amx(builder, "tilezero", register(tile))
        chunk, _, end = loop(builder, chunks, 1, [])
        at = builder.mul(chunk, number(2 * PANEL * CHUNK))
        call_amx(builder, "tileloadd64", register(_PANEL), at_address(builder, panel, at), number(4 * PANEL))
        for part in range(PARTS):
            here = builder.add(
                x, builder.add(builder.mul(chunk, number(2 * CHUNK)), builder.mul(part_bytes, number(part)))
            )
            for tile in range(count):
                rows, given = builder.mul(x_stride, number(ROWS * tile)), register(_INPUTS[(part * count + tile) % 2])
                call_amx(builder, "tileloadd64", given, at_address(builder, here, rows), x_stride)
                call_amx(builder, "tdpbf16ps", register(tile), given, register(_PANEL))
        end([])
        for tile in range(count):
            to = at_address(builder, out, builder.mul(out_stride, number(ROWS * tile)))
            call_amx(builder, "tilestored64", register(tile), to, out_stride)
        return context.get_dummy_value()

    @intrinsic
    def generated(
        typing: Any, panel: Any, x: Any, x_stride: Any, part_bytes: Any, chunks: Any, out: Any, out_stride: Any
    ) -> Any:
        return types.void(*[types.int64] * 7), generate

    @compiled
    def product(panel: int, x: int, x_stride: int, part_bytes: int, chunks: int, out: int, out_stride: int) -> None:
        generated(panel, x, x_stride, part_bytes, chunks, out, out_stride)

    return product


_by_tiles: Any = by_count([_tiles(count) for count in range(1, MOST_TILES + 1)])


@compiled
def paired_product(
    rows: int, panel: int, x: int, x_stride: int, part_bytes: int, chunks: int, out: int, out_stride: int
) -> None:
    """Rows of parts times a panel of pairs -> out [rows up to whole tiles, 16]. Registers are set for sixteen rows."""
    row = 0
    while row < rows:
        tiles = min(MOST_TILES, (rows - row + ROWS - 1) // ROWS)
        _by_tiles(tiles, panel, x + x_stride * row, x_stride, part_bytes, chunks, out + out_stride * row, out_stride)
        row += ROWS * tiles
