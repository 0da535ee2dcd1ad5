"""Inputs of products with packed weights, rounded to eight bits, for ``packed_products.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.code_cache import STRICT
from outrider.kernels.numba.packed_formats import UNIT
from outrider.kernels.numba.tiles import FLOAT, WORD, float_of_bits, number, pointer, pointer_to

strict = njit(**STRICT)

GIVEN = UNIT + 12
"""Bytes that a unit of a row of inputs takes: whole numbers [32], the sum of all and of the first 16 of them (two bytes
each), the sum once more in float32, the scale."""

_HALF = UNIT // 2
_WORDS, _FLOATS = ir.VectorType(WORD, _HALF), ir.VectorType(FLOAT, _HALF)


@strict
def units_of(inputs: int) -> int:
    return (inputs + UNIT - 1) // UNIT


@strict
def given_size(inputs: int) -> Any:
    """Bytes that a row of inputs takes: an odd number of whole lines of memory, so that rows lie across few of them
    and in different places of a cache."""
    return (GIVEN * units_of(inputs) + 63) // 64 // 2 * 128 + 64


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def _largest(typing: Any, unit: Any) -> Any:
    """The bits of the largest of a unit's numbers, without signs; what is no number has more than all others."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        mask, found = ir.Constant(_WORDS, [0x7FFFFFFF] * _HALF), []
        for half in range(2):
            bits = builder.load(pointer(builder, args[0], number(4 * _HALF * half), _WORDS), align=4)
            found.append(builder.and_(bits, mask))
        both = builder.select(builder.icmp_signed(">", *found), *found)
        return _call(builder, f"llvm.vector.reduce.smax.v{_HALF}i32", WORD, both)

    return types.int32(types.int64), generate


@intrinsic
def _round(typing: Any, unit: Any, factor: Any, to: Any) -> Any:
    """A unit's numbers times a factor, rounded to whole ones of a byte -> the sums of its halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        unit, factor, to = args
        first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), factor, ir.Constant(WORD, 0))
        every = builder.shuffle_vector(first, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_WORDS, [0] * _HALF))
        sums = []
        for half in range(2):
            x = builder.load(pointer(builder, unit, number(4 * _HALF * half), _FLOATS), align=4)
            near = _call(builder, f"llvm.rint.v{_HALF}f32", _FLOATS, builder.fmul(x, every))
            octets = builder.trunc(builder.fptosi(near, _WORDS), ir.VectorType(ir.IntType(8), _HALF))
            builder.store(octets, pointer(builder, to, number(_HALF * half), octets.type), align=1)
            sums.append(_call(builder, f"llvm.vector.reduce.add.v{_HALF}i32", WORD, builder.sext(octets, _WORDS)))
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(types.int32, 2)(types.int64, types.float32, types.int64), generate


@strict
def shorten(x: Any, span: int, given: Any) -> None:
    """Round rows x [T, inputs] to eight bits, with one scale for ``span`` inputs -> given [T, ``given_size``] bytes.

    A row is the whole numbers of all units, then their sums, those of the first 16, sums in float32, and scales.
    """
    rows, inputs = x.shape
    units, each, rest = units_of(inputs), span // UNIT, inputs % UNIT
    last = np.zeros(UNIT, np.float32)  # the last unit, where inputs do not fill it
    for row in range(rows):
        at, to = x.ctypes.data + x.strides[0] * row, given.ctypes.data + given.strides[0] * row
        sums = carray(pointer_to(to + UNIT * units), (units,), np.int16)  # which no thread counts as a part of given
        halves = carray(pointer_to(to + (UNIT + 2) * units), (units,), np.int16)
        floats = carray(pointer_to(to + (UNIT + 4) * units), (units,), np.float32)
        scales = carray(pointer_to(to + (UNIT + 8) * units), (units,), np.float32)
        for j in range(rest):
            last[j] = x[row, inputs - rest + j]
        for first in range(0, units, each):
            end = min(first + each, units)
            bits = np.int32(0x0DA24260)  # 1e-30
            for unit in range(first, end):
                filled = rest == 0 or unit < units - 1
                bits = max(bits, _largest(at + 4 * UNIT * unit if filled else last.ctypes.data))
            largest = float_of_bits(bits)
            factor, scale = np.float32(127) / largest, largest / np.float32(127)
            for unit in range(first, end):
                filled = rest == 0 or unit < units - 1
                here = at + 4 * UNIT * unit if filled else last.ctypes.data
                half, other = _round(here, factor, to + UNIT * unit)
                sums[unit], halves[unit], floats[unit], scales[unit] = half + other, half, half + other, scale
