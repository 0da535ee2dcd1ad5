"""Products of packed weights by AMX's byte products, compiled by numba: for runs of several rows.

Some units of a panel are unpacked once for all rows (``packed_blocks.py``), AMX multiplies them with sixteen rows at a
time, and vectors scale its sums. These are the whole numbers that ``packed_products.py`` has, and the operations in
float32 behind them are the same in the same order: **bits are those of the vectors**, so that few rows may be
multiplied by these and many by AMX.

AMX and vectors take turns, not instruction by instruction but every 256 inputs: while AMX is at work, the CPU has only
one of its two units for vectors of float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from outrider.kernels.numba.amx_products import ROWS, at_address, call_amx, configure, register
from outrider.kernels.numba.packed_blocks import (
    AVAILABLE,
    BLOCK_ROOM,
    HIGH,
    LINE,
    UNIT_ROOM,
    unpack,
)
from outrider.kernels.numba.packed_formats import BLOCK, FORMATS, UNIT
from outrider.kernels.numba.packed_inputs import strict
from outrider.kernels.numba.packed_scales import SUM_BYTES, scaled
from outrider.kernels.numba.tiles import PANEL, number, pointer_to

STRETCH = 8
"""Units that are multiplied before their sums are scaled, as many as a block has. Of twice as many, what is in use does
not stay in the first cache."""

PANELS = 4
"""Panels that take turns: what they read of the rows stays in the first cache."""

_UNITS = 4
"""Units whose sums are in registers."""

_KINDS = np.array([2 * form.blocks + form.minimum for form in FORMATS])
"""By a format's code: units, units with minima, blocks, blocks with minima."""

FEWEST_ROWS = np.array([16, 16, 8, 6])[_KINDS] if AVAILABLE else np.full(len(FORMATS), 1 << 40)
"""By a format's code, rows from which on AMX is quicker than vectors."""

_INPUTS, _WEIGHTS = (4, 5), (6, 7)
"""Registers, by turns."""

_RECORDS = np.array([form.record for form in FORMATS])


def _shapes() -> np.ndarray[Any, Any]:
    """[2, 17, 64]: what ``configure`` reads for units and for blocks, for so many rows."""
    found = np.zeros((2, ROWS + 1, 64), np.uint8)
    found[..., 0] = 1
    widths = found[..., 16:32].view(np.uint16)
    widths[:] = LINE
    widths[0, :, list(_INPUTS)] = UNIT
    found[..., 48:56] = np.arange(ROWS + 1)[:, None]  # lines
    found[0, :, [48 + which for which in _WEIGHTS]] = UNIT // 4
    found[1, :, [48 + which for which in _WEIGHTS]] = ROWS
    return found


_SHAPES = _shapes()


def _load(builder: Any, which: int, at: Any, offset: int, stride: Any) -> None:
    call_amx(builder, "tileloadd64", register(which), at_address(builder, at, number(offset)), stride)


def _multiply_units(count: int) -> Any:
    """Emits: some units times rows -> sums [count, 16, 16]."""

    def emit(builder: Any, room: Any, x: Any, stride: Any) -> None:
        for unit in range(count):
            given, weights = _INPUTS[unit % 2], _WEIGHTS[unit % 2]
            call_amx(builder, "tilezero", register(unit))
            _load(builder, weights, room, UNIT_ROOM * unit, number(LINE))
            _load(builder, given, x, UNIT * unit, stride)
            call_amx(builder, "tdpbssd", register(unit), register(given), register(weights))

    return emit


def _multiply_block(minimum: bool) -> Any:
    """Emits: a block times rows -> sums [low and high, 16, 16]."""
    dots = "tdpbsud", "tdpbsud" if minimum else "tdpbssd"

    def emit(builder: Any, room: Any, x: Any, stride: Any) -> None:
        for part in range(2):
            call_amx(builder, "tilezero", register(part))
        for chunk in range(BLOCK // LINE):
            given = _INPUTS[chunk % 2]
            _load(builder, given, x, LINE * chunk, stride)
            for part, dot in enumerate(dots):
                _load(builder, _WEIGHTS[part], room, HIGH * part + SUM_BYTES * chunk, number(LINE))
                call_amx(builder, dot, register(part), register(given), register(_WEIGHTS[part]))

    return emit


def _multiplied(emit: Any, sums_of: int) -> Any:
    """A function (room, x, x's stride, sums): addresses, all in bytes."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        room, x, stride, sums = args
        if AVAILABLE:
            emit(builder, room, x, stride)
            for which in range(sums_of):
                to = at_address(builder, sums, number(SUM_BYTES * which))
                call_amx(builder, "tilestored64", register(which), to, number(LINE))
        return context.get_dummy_value()

    @intrinsic
    def multiplied(typing: Any, room: Any, x: Any, stride: Any, sums: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    return multiplied


def _stretch_of_units(minimum: bool) -> Any:
    """A function (room, units there, x, x's stride, units of x, the first of these, rows, rows at a time, out, out's
    stride, sums): unpacked units times all rows, added to out; strides in bytes."""
    multiply, multiply_one = _multiplied(_multiply_units(_UNITS), _UNITS), _multiplied(_multiply_units(1), 1)
    scale, scale_one = scaled(_UNITS, False, minimum), scaled(1, False, minimum)

    @strict
    def stretch(
        room: int, count: int, x: int, line: int, units: int, first: int, rows: int, at_a_time: int, out: int,
        stride: int, sums: int,
    ) -> None:  # fmt: skip
        whole = count // _UNITS * _UNITS
        for part in range(0, rows, at_a_time):
            start = min(part, rows - at_a_time)  # rows before ``part`` are multiplied once more, and not added
            given, to, begin = x + line * start, out + stride * start, part - start
            for unit in range(0, whole, _UNITS):
                at = given + UNIT * (first + unit)
                multiply(room + UNIT_ROOM * unit, at, line, sums + SUM_BYTES * unit)
            for unit in range(whole, count):
                at = given + UNIT * (first + unit)
                multiply_one(room + UNIT_ROOM * unit, at, line, sums + SUM_BYTES * unit)
            for unit in range(0, whole, _UNITS):
                here, at = sums + SUM_BYTES * unit, room + UNIT_ROOM * unit
                scale(here, at, given, line, units, first + unit, begin, at_a_time, to, stride)
            for unit in range(whole, count):
                here, at = sums + SUM_BYTES * unit, room + UNIT_ROOM * unit
                scale_one(here, at, given, line, units, first + unit, begin, at_a_time, to, stride)

    return stretch


def _stretch_of_a_block(minimum: bool) -> Any:
    """The same for an unpacked block."""
    multiply, scale = _multiplied(_multiply_block(minimum), 2), scaled(1, True, minimum)

    @strict
    def stretch(
        room: int, count: int, x: int, line: int, units: int, first: int, rows: int, at_a_time: int, out: int,
        stride: int, sums: int,
    ) -> None:  # fmt: skip
        for part in range(0, rows, at_a_time):
            start = min(part, rows - at_a_time)
            given, to = x + line * start, out + stride * start
            multiply(room, given + UNIT * first, line, sums)
            scale(sums, room, given, line, units, first, part - start, at_a_time, to, stride)

    return stretch


_plain, _with_minima = (_stretch_of_units(minimum) for minimum in (False, True))
_block, _block_with_minima = (_stretch_of_a_block(minimum) for minimum in (False, True))

_ROOM = max(STRETCH * UNIT_ROOM, BLOCK_ROOM)


@intrinsic
def _scratch(typing: Any) -> Any:
    """The address of a scratch buffer on the stack: sums, and room for a stretch."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        size = STRETCH * SUM_BYTES + _ROOM if AVAILABLE else LINE
        with builder.goto_entry_block():
            found = builder.alloca(ir.ArrayType(ir.IntType(8), size))
            found.align = LINE
        return builder.ptrtoint(found, ir.IntType(64))

    return types.int64(), generate


@strict
def _set_registers(registers: int, blocks: bool, rows: int) -> None:
    state, shape = carray(pointer_to(registers), (1,), np.int64), (ROWS + 1) * (1 + blocks) + rows
    if state[0] != shape:
        configure(_SHAPES[int(blocks), rows].ctypes.data)
        state[0] = shape


@strict
def amx_panels(
    code: int, weights: int, panels: int, rows: int, x: int, line: int, units: int, out: int, stride: int,
    registers: int,
) -> None:  # fmt: skip
    """Rows times panels of one format, one behind the other -> out [rows, 16 * panels]; strides are in bytes.

    ``registers``: address of what the thread's registers are set to. See ``amx_products.Registers``.
    """
    parts, kind = (rows + ROWS - 1) // ROWS, _KINDS[code]
    at_a_time = (rows + parts - 1) // parts
    _set_registers(registers, kind >= 2, at_a_time)
    for row in range(rows):
        carray(pointer_to(out + stride * row), (PANEL * panels,), np.float32)[:] = 0
    sums = _scratch()
    room = sums + STRETCH * SUM_BYTES
    each = STRETCH if kind >= 2 else 1
    apart = _RECORDS[code] * (units // each)
    for first in range(0, units, STRETCH):
        count = min(STRETCH, units - first) // each
        for panel in range(panels):
            to = out + LINE * panel
            unpack(code, weights + apart * panel + _RECORDS[code] * (first // each), count, room)
            if kind == 0:
                _plain(room, count, x, line, units, first, rows, at_a_time, to, stride, sums)
            elif kind == 1:
                _with_minima(room, count, x, line, units, first, rows, at_a_time, to, stride, sums)
            elif kind == 2:
                _block(room, count, x, line, units, first, rows, at_a_time, to, stride, sums)
            else:
                _block_with_minima(room, count, x, line, units, first, rows, at_a_time, to, stride, sums)
