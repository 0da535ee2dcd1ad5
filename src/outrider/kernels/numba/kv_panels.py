"""Keys and values as a KV cache stores them, in 16 or 32 bits, and products with them, compiled by numba.

Sixteen keys lie side by side, in blocks [lines, 16]: a product with sixteen keys needs no sum across a vector. Values
lie one behind the other, [positions, padded head size]. AMX multiplies pairs: what it reads is [lines / 2, 16, 2] and
[positions / 2, padded head size, 2].

Products are in float32, except that on CPUs with float16 arithmetic a cache of float16 is multiplied as it is, as
``float16_products.py`` does: in chains of ``CHAIN`` inputs, which are added up in float32. A key is divided by a power
of two then, so that no sum can overflow; a line of these powers lies behind those of the keys. AMX multiplies a cache
of bfloat16 (``amx_attention.py``). Each product is one sum in a fixed order: batch-invariant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.amx_products import AVAILABLE as BY_AMX
from outrider.kernels.numba.amx_products import CHUNK
from outrider.kernels.numba.float16_products import AVAILABLE as IN_HALF
from outrider.kernels.numba.float16_products import CHAIN
from outrider.kernels.numba.tiles import (
    FLOAT,
    PANEL,
    WORD,
    by_count,
    compiled,
    loop,
    number,
    pointer,
)
from outrider.runtime import cpu

STORED = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.int16}
"""Formats of a KV cache, and the numpy type that stands for each in compiled code."""

HAS_FLOAT16 = cpu.facts().converts_half
"""Whether a cache can be in float16."""

GRANULE = CHAIN
"""Capacities are multiples of this."""

QUERY_LIMIT = 10
"""Queries times keys in float16: queries are below 2 ** this and keys below 1, so chains of 32 below 65504."""

HALF_ROWS = 4
"""Rows of a tile: as many as there are registers for."""

_SHORT, _HALF, _LANES = ir.IntType(16), ir.HalfType(), 8
_FLOATS, _WORDS, _HALVES = ir.VectorType(FLOAT, PANEL), ir.VectorType(WORD, PANEL), ir.VectorType(_HALF, PANEL)


def in_half(kv_cache_dtype: str) -> bool:
    """Whether a cache of this format is multiplied in float16."""
    return IN_HALF and kv_cache_dtype == "float16"


def key_lines(kv_cache_dtype: str, depth: int) -> int:
    """Lines of a block of keys."""
    if in_half(kv_cache_dtype):
        return -(-depth // CHAIN) * CHAIN + 1
    unit = CHUNK if paired(kv_cache_dtype) else PANEL
    return -(-depth // unit) * unit


def paired(kv_cache_dtype: str) -> bool:
    """Whether a cache of this format is in AMX's order."""
    return BY_AMX and kv_cache_dtype == "bfloat16"


def widened(builder: Any, stored: Any, address: Any) -> Any:
    """Sixteen numbers of the cache as float32."""
    if stored == types.float32:
        return builder.load(pointer(builder, address, number(0), _FLOATS), align=4)
    if stored == types.int16:
        return builder.fpext(builder.load(pointer(builder, address, number(0), _HALVES), align=2), _FLOATS)
    bits = builder.load(pointer(builder, address, number(0), ir.VectorType(_SHORT, PANEL)), align=2)
    words = builder.shl(builder.zext(bits, _WORDS), ir.Constant(_WORDS, [16] * PANEL))
    return builder.bitcast(words, _FLOATS)


def _chain(builder: Any, panel: Any, stride: Any, lines: list[Any], first: Any) -> list[Any]:
    """Sums of a chain in float16, from input ``first`` on: two vectors for every row."""
    kind = ir.VectorType(_HALF, _LANES)
    multiply = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.v{_LANES}f16"
    )
    place, sums, end = loop(builder, number(CHAIN), _LANES, [ir.Constant(kind, [0.0] * _LANES)] * (2 * len(lines)))
    place = builder.add(first, place)
    given = [builder.load(pointer(builder, line, builder.mul(place, number(2)), kind), align=2) for line in lines]
    for step in range(_LANES):
        at = builder.add(panel, builder.mul(builder.add(place, number(step)), stride))
        halves = [builder.load(pointer(builder, at, number(2 * _LANES * half), kind), align=2) for half in range(2)]
        lane = ir.Constant(ir.VectorType(WORD, _LANES), [step] * _LANES)
        for row, inputs in enumerate(given):
            one = builder.shuffle_vector(inputs, ir.Constant(kind, ir.Undefined), lane)
            for half in range(2):
                sums[2 * row + half] = builder.call(multiply, [one, halves[half], sums[2 * row + half]])
    end(sums)
    return sums


def _half_tile(rows: int) -> Any:
    """A function (panel, stride, x, x's stride, factors, powers, out, out's stride, inputs), all in bytes.

    x [rows, inputs] times a panel [inputs, 16], whose lines lie ``stride`` apart, both float16 -> out [rows, 16] in
    float32, times the factor of its row; ``powers``: address of what the columns are multiplied with, in float16.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        panel, stride, x, x_stride, factors, powers, out, out_stride, inputs = args
        floats, halves = ir.VectorType(FLOAT, _LANES), ir.VectorType(_HALF, _LANES)
        lines = [builder.add(x, builder.mul(x_stride, number(row))) for row in range(rows)]
        first, totals, end = loop(builder, inputs, CHAIN, [ir.Constant(floats, [0.0] * _LANES)] * (2 * rows))
        sums = _chain(builder, panel, stride, lines, first)
        totals = [builder.fadd(t, builder.fpext(s, floats)) for t, s in zip(totals, sums, strict=True)]
        end(totals)
        scales = [
            builder.fpext(builder.load(pointer(builder, powers, number(2 * _LANES * half), halves), align=2), floats)
            for half in range(2)
        ]
        for place, total in enumerate(totals):
            row, half = place // 2, place % 2
            factor = builder.load(pointer(builder, factors, number(4 * row), FLOAT))
            lane = builder.insert_element(ir.Constant(floats, ir.Undefined), factor, ir.Constant(WORD, 0))
            zeros = ir.Constant(ir.VectorType(WORD, _LANES), [0] * _LANES)
            everywhere = builder.shuffle_vector(lane, ir.Constant(floats, ir.Undefined), zeros)
            found = builder.fmul(builder.fmul(total, everywhere), scales[half])
            at = builder.add(builder.mul(out_stride, number(row)), number(4 * _LANES * half))
            builder.store(found, pointer(builder, out, at, floats), align=4)
        return context.get_dummy_value()

    @intrinsic
    def generated(
        typing: Any, panel: Any, stride: Any, x: Any, x_stride: Any, factors: Any, powers: Any, out: Any,
        out_stride: Any, inputs: Any,
    ) -> Any:  # fmt: skip
        return types.void(*[types.int64] * 9), generate

    @compiled
    def product(
        panel: int, stride: int, x: int, x_stride: int, factors: int, powers: int, out: int, out_stride: int,
        inputs: int,
    ) -> None:  # fmt: skip
        generated(panel, stride, x, x_stride, factors, powers, out, out_stride, inputs)

    return product


@compiled
def _no_product(
    rows: int, panel: int, stride: int, x: int, x_stride: int, factors: int, powers: int, out: int, out_stride: int,
    inputs: int,
) -> None: ...  # fmt: skip


half_product: Any = by_count([_half_tile(rows) for rows in range(1, HALF_ROWS + 1)]) if IN_HALF else _no_product
"""(rows, ...): up to HALF_ROWS rows times a panel, in float16. Other CPUs have no instructions for it."""


def _multiplied(available: bool, kind: Any) -> Any:
    """A function (stored): whether a cache is of this type and multiplied so. Known when the code is compiled."""

    @intrinsic
    def multiplied(typing: Any, stored: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return ir.Constant(ir.IntType(1), int(available and signature.args[0].dtype == kind))

        return types.boolean(stored), generate

    return multiplied


multiplied_in_half, multiplied_by_amx = _multiplied(IN_HALF, types.int16), _multiplied(BY_AMX, types.uint16)
