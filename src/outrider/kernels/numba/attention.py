"""Attention of one query over its keys and values, compiled by numba. Head sizes of 16 and more.

For the few keys of a draft head; a model's own attention is in ``tiled_attention.py``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.tiles import FLOAT, WORD, loop, number, pointer

_BLOCK = ir.VectorType(FLOAT, 16)
_NOUGHT = ir.Constant(_BLOCK, [0.0] * 16)


def _block_fma(builder: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(_BLOCK, [_BLOCK] * 3), "llvm.fma.v16f32")


def _dots(keys: int) -> Any:
    """A function (query, first key, size, out): a query times several keys, one behind the other."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        query, first, size, out = args
        multiply = _block_fma(builder)
        lines = [builder.add(first, builder.mul(size, number(4 * key))) for key in range(keys)]
        place, totals, end = loop(builder, size, 16, [_NOUGHT] * keys)
        offset = builder.mul(place, number(4))
        asked, *given = (builder.load(pointer(builder, at, offset, _BLOCK), align=4) for at in [query, *lines])
        totals = [builder.call(multiply, [asked, key, total]) for key, total in zip(given, totals, strict=True)]
        end(totals)
        add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(FLOAT, [FLOAT, _BLOCK]), "llvm.vector.reduce.fadd.v16f32"
        )
        for key, total in enumerate(totals):
            one = builder.call(add, [ir.Constant(FLOAT, 0.0), total], fastmath=("reassoc",))
            builder.store(one, pointer(builder, out, number(4 * key), FLOAT))
        return context.get_dummy_value()

    @intrinsic
    def generated(typing: Any, query: Any, first: Any, size: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    return generated


dot, four_dots = _dots(1), _dots(4)
"""Sizes are multiples of 16."""


def _blend(blocks: int) -> Any:
    """A function (weights, values, stride, count, out): weights [count] times values [count, 16 * blocks] -> out."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        weights, values, stride, count, out = args
        multiply = _block_fma(builder)
        place, totals, end = loop(builder, count, 1, [_NOUGHT] * blocks)
        weight = builder.load(pointer(builder, weights, builder.mul(place, number(4)), FLOAT))
        first = builder.insert_element(ir.Constant(_BLOCK, ir.Undefined), weight, ir.Constant(WORD, 0))
        lanes = ir.Constant(ir.VectorType(WORD, 16), [0] * 16)
        everywhere = builder.shuffle_vector(first, ir.Constant(_BLOCK, ir.Undefined), lanes)
        line = builder.add(values, builder.mul(builder.mul(place, stride), number(4)))
        parts = [builder.load(pointer(builder, line, number(64 * b), _BLOCK), align=4) for b in range(blocks)]
        totals = [builder.call(multiply, [everywhere, part, total]) for part, total in zip(parts, totals, strict=True)]
        end(totals)
        for block, total in enumerate(totals):
            builder.store(total, pointer(builder, out, number(64 * block), _BLOCK), align=4)
        return context.get_dummy_value()

    @intrinsic
    def generated(typing: Any, weights: Any, values: Any, stride: Any, count: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return generated


blend, wide_blend = _blend(1), _blend(4)
"""16 and 64 columns."""
