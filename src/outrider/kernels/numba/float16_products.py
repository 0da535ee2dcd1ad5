"""float16 matrix products compiled by numba, for CPUs with float16 arithmetic: no conversion to float32.

A float16 has three more bits of precision than the bfloat16 that weights were saved in, so weights are exact
(``models/engine/numba_weights.py`` has the exceptions), but a smaller range. So a row of inputs is scaled by the
largest power of two with which no sum can overflow, and the result is scaled back: both are exact.
Two roundings are left: inputs to eleven bits, and sums in float16. These sums are short: after ``CHAIN`` inputs a
column's sum is added to one in float32. As in ``tiles.py`` a sum is over one row in a fixed order: batch-invariant,
**bits do not depend on the width of a run.**
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.tiles import FLOAT, PANEL, WORD, by_count, compiled, float_of_bits, loop, number, pointer
from outrider.runtime import cpu

CHAIN = 32
"""Inputs whose products are summed in float16; a panel of float16 is filled up to whole chains."""

_LANES = 8
"""Numbers of a vector, columns of half a panel, and inputs a turn of the inner loop takes."""

_MOST_ROWS = 9
"""Rows of a tile: with two vectors of sums each, one of inputs, and two of weights there are registers for no more."""

_LONG, _NARROW = ir.IntType(64), ir.IntType(16)
_HALVES, _FLOATS = ir.VectorType(ir.HalfType(), _LANES), ir.VectorType(FLOAT, _LANES)


@intrinsic
def _half_bits(typing: Any, value: Any) -> Any:
    """A float32, rounded to float16, as its bits."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), _NARROW)

    return types.uint16(types.float32), generate


@compiled
def wide(bits: Any) -> Any:
    """The number that 16 bits of a float16 stand for: exact, subnormal ones included."""
    size = float_of_bits(np.int32(bits & 0x7FFF) << np.int32(13)) * np.float32(2.0**112)
    return -size if bits & 0x8000 else size


@compiled
def _narrow(x: Any, limit: int, unit: int, bits: Any, factors: Any) -> None:
    """x [rows, inputs] in float16, no number beyond 2 ** limit, and what to multiply a row's products with after.

    Weights were divided by 2 ** unit. ``bits`` has room for whole chains, filled up with zeros.
    """
    for row in range(x.shape[0]):
        line = x[row].view(np.int32)
        largest = np.int32(0)
        for column in range(len(line)):
            largest = max(largest, line[column] & np.int32(0x7FFFFFFF))
        # 2 ** power is beyond all numbers of the row; of one of zeros, or nearly, nothing is to be scaled.
        power: Any = max((largest >> np.int32(23)) - np.int32(126), np.int32(-64))
        scale = float_of_bits(np.int32(127 + limit - power) << np.int32(23))
        back = min(max(127 - limit + power + unit, 0), 255)  # what float32 cannot hold becomes zero or infinite
        factors[row] = float_of_bits(np.int32(back) << np.int32(23))
        for column in range(len(line)):
            bits[row, column] = _half_bits(x[row, column] * scale)
        for column in range(len(line), bits.shape[1]):
            bits[row, column] = 0


def _hidden(builder: Any, value: int) -> Any:
    """A number that the compiler does not know.

    It unrolls loops of a known and small number of turns, and rearranges their loads: memory that is not read in
    order comes later (two rows on a Neoverse-N1: 11.6 instead of 8.6 ms).
    """
    return builder.asm(ir.FunctionType(_LONG, [_LONG]), "", "=r,0", [number(value)], False)


def _add_chain(builder: Any, weights: Any, lines: list[Any], first: Any) -> list[Any]:
    """Sums of a chain, from input ``first`` on: two vectors of float16 for every row."""
    multiply = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_HALVES, [_HALVES] * 3), f"llvm.fma.v{_LANES}f16"
    )
    nothing = ir.Constant(_HALVES, ir.Undefined)
    nought = ir.Constant(_HALVES, [0.0] * _LANES)
    place, sums, end = loop(builder, _hidden(builder, CHAIN), _LANES, [nought] * (2 * len(lines)))
    place = builder.add(first, place)
    offset = builder.mul(place, number(2))
    given = [builder.load(pointer(builder, line, offset, _HALVES), align=2) for line in lines]
    for step in range(_LANES):
        offset = builder.mul(builder.add(place, number(step)), number(2 * PANEL))
        at = [builder.add(offset, number(2 * _LANES * half)) for half in range(2)]
        halves = [builder.load(pointer(builder, weights, place, _HALVES), align=16) for place in at]
        everywhere = ir.Constant(ir.VectorType(WORD, _LANES), [step] * _LANES)
        for row, inputs in enumerate(given):
            one = builder.shuffle_vector(inputs, nothing, everywhere)
            for half in range(2):
                sums[2 * row + half] = builder.call(multiply, [one, halves[half], sums[2 * row + half]])
    end(sums)
    return sums


def _tile(rows: int) -> Any:
    """A function (weights, x, factors, out, out's stride, inputs): addresses in bytes, strides in numbers.

    x [rows, inputs] times one panel -> out [rows, 16]. Sums in float32 are kept there: registers are for float16.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        weights, x, factors, out, stride, inputs = args
        lines = [builder.add(x, builder.mul(inputs, number(2 * row))) for row in range(rows)]
        starts = [builder.add(out, builder.mul(stride, number(4 * row))) for row in range(rows)]
        totals = [pointer(builder, at, number(4 * _LANES * half), _FLOATS) for at in starts for half in range(2)]
        for total in totals:
            builder.store(ir.Constant(_FLOATS, [0.0] * _LANES), total, align=4)
        first, _, end = loop(builder, inputs, CHAIN, [])
        for total, found in zip(totals, _add_chain(builder, weights, lines, first), strict=True):
            before = builder.load(total, align=4)
            builder.store(builder.fadd(before, builder.fpext(found, _FLOATS)), total, align=4)
        end([])
        for place, total in enumerate(totals):
            factor = builder.load(pointer(builder, factors, number(4 * (place // 2)), FLOAT))
            lane = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), factor, ir.Constant(WORD, 0))
            zeros = ir.Constant(ir.VectorType(WORD, _LANES), [0] * _LANES)
            everywhere = builder.shuffle_vector(lane, ir.Constant(_FLOATS, ir.Undefined), zeros)
            builder.store(builder.fmul(builder.load(total, align=4), everywhere), total, align=4)
        return context.get_dummy_value()

    @intrinsic
    def generated(typing: Any, weights: Any, x: Any, factors: Any, out: Any, stride: Any, inputs: Any) -> Any:
        return types.void(*[types.int64] * 6), generate

    @compiled
    def product(weights: int, x: int, factors: int, out: int, stride: int, inputs: int) -> None:
        generated(weights, x, factors, out, stride, inputs)

    return product


_multiply = by_count([_tile(rows) for rows in range(1, _MOST_ROWS + 1)])


@compiled
def _half_product(weights: int, bits: Any, factors: Any, inputs: int, out: int, stride: int, panels: int) -> None:
    """bits [rows, inputs] times panels -> out [rows, 16 * panels], whose rows lie ``stride`` numbers apart."""
    rows = len(factors)
    for panel in range(panels):
        here = weights + 2 * PANEL * inputs * panel
        row = 0
        while row < rows:  # in parts as equal as possible
            left = (rows - row + _MOST_ROWS - 1) // _MOST_ROWS
            count = (rows - row + left - 1) // left
            x, by = bits.ctypes.data + 2 * inputs * row, factors.ctypes.data + 4 * row
            _multiply(count, here, x, by, out + 4 * (stride * row + PANEL * panel), stride, inputs)
            row += count


@compiled
def _no_narrow(x: Any, limit: int, unit: int, bits: Any, factors: Any) -> None: ...


@compiled
def _no_product(weights: int, bits: Any, factors: Any, inputs: int, out: int, stride: int, panels: int) -> None: ...


AVAILABLE = cpu.facts().computes_in_half

# Other CPUs have no instructions for them, and nothing calls them there.
narrow, half_product = (_narrow, _half_product) if AVAILABLE else (_no_narrow, _no_product)
