"""Products in float32 of a few rows with panels of sixteen columns, compiled by numba.

Keys and values are multiplied as the KV cache stores them. Each sum is one chain of fused multiply-adds over its
inputs, so its bits do not depend on how many rows and panels a tile has. Six rows and four panels are 24 sums that run
side by side: a chain waits for its last sum, and more rows beside fewer panels have more addresses than there are
registers for.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.kv_panels import widened
from outrider.kernels.numba.tiles import ARM, FLOAT, PANEL, WIDE, WORD, by_count, compiled, loop, number, pointer

_MOST_ROWS = 5 if ARM else 6
"""Rows of a tile."""

_SUMS = 24 if WIDE else 6
"""Panels times rows of a tile at most: the other registers hold columns and inputs."""

_STEP = 4
"""Inputs a turn of the inner loop takes."""

_AHEAD = 2048
"""Bytes before they are needed, columns are asked for. ARM reads ahead by itself."""

_FLOATS, _WORDS = ir.VectorType(FLOAT, PANEL), ir.VectorType(WORD, PANEL)


def _repeated(builder: Any, address: Any, offset: Any) -> Any:
    """A number in all lanes."""
    one = builder.load(pointer(builder, address, offset, FLOAT))
    first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), one, ir.Constant(WORD, 0))
    return builder.shuffle_vector(first, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_WORDS, [0] * PANEL))


def _fetch(builder: Any, address: Any) -> None:
    """Ask for the line of memory that is needed in a while."""
    kinds = [ir.IntType(8).as_pointer(), WORD, WORD, WORD]
    asked = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0")
    at = pointer(builder, address, number(_AHEAD), ir.IntType(8))
    builder.call(asked, [at, *(ir.Constant(WORD, value) for value in (0, 2, 1))])


def _tile(rows: int, panels: int) -> Any:
    """A function (stored, panel, stride, apart, x, x's stride, out, out's stride, inputs): addresses, and strides in
    bytes.

    x [rows, inputs] in float32 times ``panels`` panels [inputs, 16], ``apart`` bytes from one to the next, whose lines
    lie ``stride`` bytes apart -> out [rows, 16 * panels]. Panels are of the type of ``stored``, an array.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, panel, stride, apart, x, x_stride, out, out_stride, inputs = args
        stored = signature.args[0].dtype
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fma.v{PANEL}f32"
        )
        lines = [builder.add(x, builder.mul(x_stride, number(row))) for row in range(rows)]
        starts = [builder.add(panel, builder.mul(apart, number(each))) for each in range(panels)]
        places = [
            pointer(builder, out, builder.add(builder.mul(out_stride, number(row)), number(4 * PANEL * each)), _FLOATS)
            for row in range(rows)
            for each in range(panels)
        ]
        nought = ir.Constant(_FLOATS, [0.0] * PANEL)
        place, totals, end = loop(builder, inputs, _STEP, [nought] * len(places))
        for step in range(_STEP):
            line = builder.add(place, number(step))
            offset = builder.mul(line, stride)
            columns = [widened(builder, stored, builder.add(start, offset)) for start in starts]
            if not ARM and (stored == types.float32 or step % 2 == 0):  # a line of memory has 64 bytes
                for start in starts:
                    _fetch(builder, builder.add(start, offset))
            for row in range(rows):
                one = _repeated(builder, lines[row], builder.mul(line, number(4)))
                for each, column in enumerate(columns, start=panels * row):
                    totals[each] = builder.call(multiply, [one, column, totals[each]])
        end(totals)
        for place, total in zip(places, totals, strict=True):
            builder.store(total, place, align=4)
        return context.get_dummy_value()

    @intrinsic
    def generated(
        typing: Any, stored: Any, panel: Any, stride: Any, apart: Any, x: Any, x_stride: Any, out: Any,
        out_stride: Any, inputs: Any,
    ) -> Any:  # fmt: skip
        return types.void(stored, *[types.int64] * 8), generate

    @compiled
    def product(
        stored: Any, panel: int, stride: int, apart: int, x: int, x_stride: int, out: int, out_stride: int, inputs: int
    ) -> None:
        generated(stored, panel, stride, apart, x, x_stride, out, out_stride, inputs)

    return product


def _tiles(panels: int) -> Any:
    """(rows, ...): tiles of so many panels."""
    most = min(_MOST_ROWS, max(1, _SUMS // panels))
    return by_count([_tile(rows, panels) for rows in range(1, most + 1)])


_by_one, _by_two, _by_four = _tiles(1), _tiles(2), _tiles(4)


@compiled
def panels_beside(rows: int) -> int:
    """Panels of a tile of so many rows."""
    return 4 if 4 * rows <= _SUMS else 2 if 2 * rows <= _SUMS else 1


@compiled
def multiply_panels(
    stored: Any, panel: int, stride: int, apart: int, panels: int, x: int, x_stride: int, rows: int, out: int,
    out_stride: int, inputs: int,
) -> None:  # fmt: skip
    """As ``_tile``, of any number of rows and panels. Panels of a tile stay in the first cache for all rows."""
    each = 0
    while each < panels:
        wide = panels_beside(min(rows, _MOST_ROWS))
        while each + wide > panels:
            wide //= 2
        at, to = panel + apart * each, out + 4 * PANEL * each
        row = 0
        while row < rows:  # in parts as equal as possible
            left = (rows - row + _MOST_ROWS - 1) // _MOST_ROWS
            count, given, into = (rows - row + left - 1) // left, x + x_stride * row, to + out_stride * row
            if wide == 4:
                _by_four(count, stored, at, stride, apart, given, x_stride, into, out_stride, inputs)
            elif wide == 2:
                _by_two(count, stored, at, stride, apart, given, x_stride, into, out_stride, inputs)
            else:
                _by_one(count, stored, at, stride, apart, given, x_stride, into, out_stride, inputs)
            row += count
        each += wide
