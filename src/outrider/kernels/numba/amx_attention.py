"""Products of attention by AMX, with keys and values in bfloat16, compiled by numba.

Queries are split into two bfloat16 numbers each, as the inputs of ``amx_products.py`` are; weights are rounded to one,
as values are. Every product is one sum in a fixed order, whatever the number of rows beside it: batch-invariant.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.extending import intrinsic

from outrider.kernels.numba.amx_products import CHUNK, PARTS, ROWS, at_address, call_amx, register
from outrider.kernels.numba.tiles import PANEL, by_count, compiled, loop, number

_MOST_PANELS = 4
"""Panels whose sums are in registers."""

_INPUTS, _PANELS = (4, 5), (6, 7)
"""Registers: of the parts of rows, and of panels, by turns."""


class Panels(NamedTuple):
    """Where keys or values lie: an address, and bytes."""

    first: int
    apart: int  # from one panel to the next
    chunk_bytes: int
    line_bytes: int  # from one line of pairs to the next


def _tile(count: int, parts: int) -> Any:
    """A function (panels, x, x's stride, bytes of a part, chunks, out, out's stride), all in bytes.

    Sixteen rows of x, each its parts one behind the other, times ``count`` panels -> out [16, 16 * count].
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        given, x, x_stride, part_bytes, chunks, out, out_stride = args
        first, apart, chunk_bytes, line_bytes = (
            builder.extract_value(given, place) for place in range(len(Panels._fields))
        )
        for panel in range(count):
            call_amx(builder, "tilezero", register(panel))
        chunk, _, end = loop(builder, chunks, 1, [])
        for part in range(parts):
            before = builder.add(builder.mul(chunk, number(2 * CHUNK)), builder.mul(part_bytes, number(part)))
            call_amx(builder, "tileloadd64", register(_INPUTS[part]), at_address(builder, x, before), x_stride)
        for panel in range(count):
            at = builder.add(builder.mul(chunk, chunk_bytes), builder.mul(apart, number(panel)))
            loaded = register(_PANELS[panel % 2])
            call_amx(builder, "tileloadd64", loaded, at_address(builder, first, at), line_bytes)
            for part in range(parts):
                call_amx(builder, "tdpbf16ps", register(panel), register(_INPUTS[part]), loaded)
        end([])
        for panel in range(count):
            to = at_address(builder, out, number(4 * PANEL * panel))
            call_amx(builder, "tilestored64", register(panel), to, out_stride)
        return context.get_dummy_value()

    @intrinsic
    def generated(
        typing: Any, panels: Any, x: Any, x_stride: Any, part_bytes: Any, chunks: Any, out: Any, out_stride: Any
    ) -> Any:
        return types.void(panels, *[types.int64] * 6), generate

    @compiled
    def product(panels: Panels, x: int, x_stride: int, part_bytes: int, chunks: int, out: int, out_stride: int) -> None:
        generated(panels, x, x_stride, part_bytes, chunks, out, out_stride)

    return product


def _paired_product(parts: int) -> Any:
    by_panels = by_count([_tile(count, parts) for count in (1, 2, _MOST_PANELS)])

    @compiled
    def product(
        rows: int, count: int, panels: Panels, x: int, x_stride: int, part_bytes: int, chunks: int, out: int,
        out_stride: int,
    ) -> None:  # fmt: skip
        for row in range(0, rows, ROWS):
            panel = 0
            while panel < count:
                wide = _MOST_PANELS
                while panel + wide > count:
                    wide //= 2
                here = Panels(panels.first + panels.apart * panel, panels.apart, panels.chunk_bytes, panels.line_bytes)
                to = out + out_stride * row + 4 * PANEL * panel
                by_panels(wide // 2 + 1, here, x + x_stride * row, x_stride, part_bytes, chunks, to, out_stride)
                panel += wide

    return product


parted_product, single_product = _paired_product(PARTS), _paired_product(1)
"""Rows, of parts or of one, times so many panels -> out [rows, 16 * count]: (rows, count, panels, x, x_stride,
part_bytes, chunks, out, out_stride), x and out addresses, strides in bytes. Whole sixteens of rows are read and
written: behind the last there must be room for them. Registers are set for sixteen rows."""
