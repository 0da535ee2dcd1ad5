"""Packed weights as AMX's byte products read them: unpacked into a small scratch buffer, by vectors of AVX-512.

A unit of 32 inputs is 512 bytes [8 steps, 16 columns, 4 inputs], the weights less their offset, then its scales and
minima in float32. In K formats a weight times the scale of its unit takes two bytes, and so two such blocks: low parts
and high ones. AMX then adds up whole blocks of 256 inputs, and float32 operations are needed once for each.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.kernels.numba.packed_dots import Vectors, vectors
from outrider.kernels.numba.packed_formats import FORMATS, UNIT, Format
from outrider.kernels.numba.tiles import AHEAD, FLOAT, PANEL, WORD, fetch, loop, number, pointer
from outrider.runtime import cpu

AVAILABLE = cpu.facts().multiplies_bytes_by_amx

LINE = 4 * PANEL
"""Bytes of a vector: a step of four inputs, or a number of four bytes for each column."""

VALUES = 8 * LINE
"""Bytes of a unit's weights."""

UNIT_ROOM = VALUES + 2 * LINE
"""Bytes of a unit: weights, scales, minima."""

HIGH = 8 * VALUES
"""Where a block's high parts begin. Behind these are minima: of two units each, in two bytes."""

MINIMA = 2 * HIGH
BLOCK_ROOM = MINIMA + 4 * LINE + 2 * LINE
"""Bytes of a block: low parts, high parts, minima of units, and what scales and minima are multiplied with."""

SHIFTS = {True: 3, False: 8}
"""Bits of the low part, of formats with minima and without. Scales of the former are of six bits, and multiplied three
by three: products with five bits fit into a byte. Of Q6_K products are signed, and their upper and lower byte taken."""

STEP, PAIRS = ir.VectorType(ir.IntType(8), LINE), ir.VectorType(ir.IntType(16), 2 * PANEL)
SUMS, FLOATS = ir.VectorType(WORD, PANEL), ir.VectorType(FLOAT, PANEL)


def every(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def store(builder: Any, vector: Any, to: Any, offset: int, align: int = LINE) -> None:
    builder.store(vector, pointer(builder, to, number(offset), vector.type), align=align)


def _unpack_unit(v: Vectors, builder: Any, form: Format, at: Any, to: Any) -> None:
    for step, weights in v.steps(form, at, 0):
        if form.bits == 8:  # vpdpbusd takes them from 0 on
            weights = builder.xor(weights, every(STEP, 128))
        elif form.offset:
            weights = builder.sub(weights, every(STEP, form.offset))
        store(builder, weights, to, LINE * step)
    for place in range(1 + form.minimum):
        found = v.halves(builder.add(at, number(form.values + 2 * PANEL * place)))[0]
        store(builder, found, to, VALUES + LINE * place)


def _twice(builder: Any, words: Any) -> Any:
    """Whole numbers of two bytes [16] -> each of them twice."""
    low = builder.and_(words, every(SUMS, 0xFFFF))
    return builder.bitcast(builder.or_(low, builder.shl(words, every(SUMS, 16))), PAIRS)


def _scaled_unsigned(v: Vectors, builder: Any, form: Format, at: Any, to: Any) -> None:
    """Weights from 0 on times scales of six bits: two products in a word do not reach into each other."""
    scale = v.bytes(builder.add(at, number(form.values)))[0]
    low = _twice(builder, builder.and_(scale, every(SUMS, (1 << SHIFTS[True]) - 1)))
    high = _twice(builder, builder.lshr(scale, every(SUMS, SHIFTS[True])))
    for step, weights in v.steps(form, at, 0):
        pairs = builder.bitcast(weights, PAIRS)
        store(builder, builder.mul(pairs, low), to, LINE * step)
        store(builder, builder.mul(pairs, high), to, HIGH + LINE * step)


def _scaled_signed(v: Vectors, builder: Any, form: Format, at: Any, to: Any) -> None:
    """Weights less their offset times scales of eight bits with a sign: upper and lower bytes."""
    places = [form.values + PANEL * group for group in range(form.groups)]
    scales = [_twice(builder, v.bytes(builder.add(at, number(place)))[0]) for place in places]
    less = [builder.mul(scale, every(PAIRS, form.offset)) for scale in scales]
    byte, eight, upper = every(PAIRS, 0xFF), every(PAIRS, 8), every(PAIRS, 0xFF00)
    for step, weights in v.steps(form, at, 0):
        pairs, group = builder.bitcast(weights, PAIRS), step * form.groups // 8
        halves = builder.and_(pairs, byte), builder.lshr(pairs, eight)
        even, odd = (builder.sub(builder.mul(half, scales[group]), less[group]) for half in halves)
        store(builder, builder.or_(builder.and_(even, byte), builder.shl(odd, eight)), to, LINE * step)
        store(builder, builder.or_(builder.lshr(even, eight), builder.and_(odd, upper)), to, HIGH + LINE * step)


def _unpack_block(v: Vectors, builder: Any, form: Format, at: Any, to: Any) -> None:
    unit, _, end = loop(builder, number(8), 1, [])
    here = builder.add(at, builder.mul(unit, number(form.unit)))
    scaled = _scaled_unsigned if form.minimum else _scaled_signed
    scaled(v, builder, form, here, builder.add(to, builder.mul(unit, number(VALUES))))
    end([])
    for place in range(1 + form.minimum):
        found = v.halves(builder.add(at, number(8 * form.unit + 2 * PANEL * place)))[0]
        store(builder, found, to, MINIMA + 4 * LINE + LINE * place)
    for pair in range(4 * form.minimum):
        starts = [form.unit * unit + form.values + PANEL for unit in (2 * pair, 2 * pair + 1)]
        first, second = (v.bytes(builder.add(at, number(start)))[0] for start in starts)
        store(builder, builder.or_(first, builder.shl(second, every(SUMS, 16))), to, MINIMA + LINE * pair)


def _unpack_all(v: Vectors, builder: Any, form: Format, at: Any, count: Any, to: Any) -> None:
    record, _, end = loop(builder, count, 1, [])
    here = builder.add(at, builder.mul(record, number(form.record)))
    if AHEAD:
        for line in range(0, form.record, LINE):
            fetch(builder, here, number(line))
    if form.blocks:
        _unpack_block(v, builder, form, here, builder.add(to, builder.mul(record, number(BLOCK_ROOM))))
    else:
        _unpack_unit(v, builder, form, here, builder.add(to, builder.mul(record, number(UNIT_ROOM))))
    end([])


@intrinsic
def unpack(typing: Any, code: Any, at: Any, count: Any, to: Any) -> Any:
    """So many records of a panel of a format, units or blocks -> ``UNIT_ROOM`` or ``BLOCK_ROOM`` bytes each."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if not AVAILABLE:
            return context.get_dummy_value()
        code, at, count, to = args
        v, after = vectors(builder, cpu.facts()), builder.append_basic_block("unpacked")
        choice = builder.switch(code, after)
        for which, form in enumerate(FORMATS):
            case = builder.append_basic_block(f"unpack_{form.name}")
            choice.add_case(number(which), case)
            builder.position_at_end(case)
            _unpack_all(v, builder, form, at, count, to)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


assert all(form.bits <= 5 or not form.minimum for form in FORMATS), "products would not fit into a byte"
assert UNIT * PANEL == VALUES
