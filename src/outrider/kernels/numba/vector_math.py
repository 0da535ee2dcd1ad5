"""Exponentials on vectors, compiled by numba: the weights of attention, and the gates of a layer.

Written out in vectors, since LLVM makes none of the scalar ``layer_math.exp``, which takes several times as long.
Sums are over lanes in a fixed order.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.amx_products import parts_of
from outrider.kernels.numba.float16_products import AVAILABLE as IN_HALF
from outrider.kernels.numba.tiles import FLOAT, PANEL, WORD, compiled, loop, number, pointer

_FLOATS, _WORDS = (ir.VectorType(kind, PANEL) for kind in (FLOAT, WORD))


HALF_WEIGHT = 1 / 32
"""Weights in float16 are multiplied with it: sums of 32 weighted values stay below the largest value."""


def _constant(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * PANEL)


def _call(builder: Any, name: str, *arguments: Any) -> Any:
    """An LLVM function of vectors."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(arguments))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{PANEL}f32"), arguments)


def _exp(builder: Any, x: Any) -> Any:
    """e^x to about a unit in the last place; never zero, never infinite: x is limited to -87..88."""
    x = _call(builder, "maxnum", _call(builder, "minnum", x, _constant(88.0)), _constant(-87.0))
    whole = _call(builder, "floor", _call(builder, "fma", x, _constant(1.4426950408889634), _constant(0.5)))
    rest = _call(builder, "fma", whole, _constant(-0.693359375), x)  # ln 2 in two parts
    rest = _call(builder, "fma", whole, _constant(2.12194440e-4), rest)
    # The series in pairs of terms and pairs of these: a third of the steps that wait for one another.
    square = builder.fmul(rest, rest)
    terms = [1.0, 1.0, 0.5, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040]
    pairs = [_call(builder, "fma", rest, _constant(terms[n + 1]), _constant(terms[n])) for n in range(0, 8, 2)]
    low, high = (_call(builder, "fma", square, pairs[n + 1], pairs[n]) for n in (0, 2))
    power = _call(builder, "fma", builder.fmul(square, square), high, low)
    # Times two to the whole, by its exponent: a product could be fused with what is added to it at one place only.
    exponent = builder.shl(builder.fptosi(whole, _WORDS), ir.Constant(_WORDS, [23] * PANEL))
    return builder.bitcast(builder.add(builder.bitcast(power, _WORDS), exponent), _FLOATS)


def _across(builder: Any, vector: Any, combine: Any) -> Any:
    """All lanes into one number, halves with halves."""
    lanes = PANEL
    while lanes > 1:
        lanes //= 2
        low, high = (
            builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(WORD, lanes), list(range(begin, begin + lanes)))
            )
            for begin in (0, lanes)
        )
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(WORD, 0))


def _higher(builder: Any) -> Any:
    return lambda left, right: builder.select(builder.fcmp_ordered(">", left, right), left, right)


@intrinsic
def _weigh(
    typing: Any, scores: Any, first: Any, end: Any, low: Any, turns: Any, halves: Any, apart: Any, out: Any
) -> Any:  # fmt: skip
    """As ``weigh``, but the number of scores to go over in place of where they end."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        scores, first, end, low, turns, halves, apart, out = args
        lanes = ir.Constant(_WORDS, list(range(PANEL)))

        def everywhere(value: Any, kind: Any) -> Any:
            one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(WORD, 0))
            return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_WORDS, [0] * PANEL))

        def masked(place: Any, vector: Any, otherwise: Any) -> Any:
            """With another number for what is not seen. Most blocks are seen as a whole."""
            begin, stop = (builder.trunc(builder.sub(value, builder.add(low, place)), WORD) for value in (first, end))
            partly = builder.or_(
                builder.icmp_signed(">", begin, ir.Constant(WORD, 0)),
                builder.icmp_signed("<", stop, ir.Constant(WORD, PANEL)),
            )
            before = builder.block
            with builder.if_then(partly):
                seen = builder.and_(
                    builder.icmp_signed("<=", everywhere(begin, _WORDS), lanes),
                    builder.icmp_signed(">", everywhere(stop, _WORDS), lanes),
                )
                some, inside = builder.select(seen, vector, otherwise), builder.block
            found = builder.phi(_FLOATS)
            found.add_incoming(vector, before)
            found.add_incoming(some, inside)
            return found

        def block(place: Any) -> Any:
            return pointer(builder, scores, builder.mul(builder.add(low, place), number(4)), _FLOATS)

        lowest = _constant(float("-inf"))
        place, (highest,), done = loop(builder, turns, PANEL, [lowest])
        found = masked(place, builder.load(block(place), align=4), lowest)
        highest = _call(builder, "maxnum", found, highest)
        done([highest])
        top = _across(builder, highest, _higher(builder))
        place, (total,), done = loop(builder, turns, PANEL, [_constant(0.0)])
        weights = _exp(builder, builder.fsub(builder.load(block(place), align=4), everywhere(top, _FLOATS)))
        weights = masked(place, weights, _constant(0.0))
        builder.store(weights, block(place), align=4)
        if IN_HALF:
            with builder.if_then(builder.icmp_signed("!=", halves, number(0))):
                scaled = builder.fmul(weights, _constant(HALF_WEIGHT))
                narrow = builder.fptrunc(scaled, ir.VectorType(ir.HalfType(), PANEL))
                offset = builder.mul(builder.add(low, place), number(2))
                builder.store(narrow, pointer(builder, halves, offset, narrow.type), align=2)
        with builder.if_then(builder.icmp_signed("!=", apart, number(0))):
            for part, numbers in enumerate(parts_of(builder, weights)):
                offset = builder.add(builder.mul(apart, number(part)), builder.mul(builder.add(low, place), number(2)))
                builder.store(numbers, pointer(builder, halves, offset, numbers.type), align=2)
        total = builder.fadd(total, weights)
        done([total])
        builder.store(top, pointer(builder, out, number(0), FLOAT))
        builder.store(_across(builder, total, builder.fadd), pointer(builder, out, number(4), FLOAT))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


@compiled
def weigh(scores: int, first: int, end: int, low: int, high: int, halves: int, apart: int, out: int) -> None:
    """Scores of the keys that a query sees, first..end -> weights, and zeros around them in low..high.

    -> out: the highest score (that of no key: minus infinity), and the sum of weights. ``low`` and ``high`` are
    multiples of PANEL; ``scores``, ``halves`` and ``out`` are addresses. Unless it is 0, ``halves`` gets the weights in
    16 bits, too: times HALF_WEIGHT where the CPU computes in float16; by AMX in parts, ``apart`` bytes apart.
    """
    _weigh(scores, first, end, low, high - low, halves, apart, out)


def _gated(before: Any) -> Any:
    """An intrinsic: gate / (1 + e^before(gate)) * up of PANEL numbers at addresses."""

    @intrinsic
    def multiplied(typing: Any, gate: Any, up: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            gate, up = (builder.load(pointer(builder, at, number(0), _FLOATS), align=4) for at in args[:2])
            under = builder.fadd(_constant(1.0), _exp(builder, before(builder, gate)))
            builder.store(
                builder.fmul(builder.fdiv(gate, under), up), pointer(builder, args[2], number(0), _FLOATS), align=4
            )
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return multiplied


def _twice_inside_tanh(builder: Any, x: Any) -> Any:
    """-2 u, where GELU is x (1 + tanh u) / 2: that is x over 1 + e^(-2 u)."""
    cubed = _call(builder, "fma", builder.fmul(x, x), _constant(0.044715), _constant(1.0))
    return builder.fmul(builder.fmul(x, cubed), _constant(-2 * 0.7978845608028654))


_silu, _gelu = _gated(lambda builder, x: builder.fneg(x)), _gated(_twice_inside_tanh)


@compiled
def silu(gate: int, up: int, out: int) -> None:
    """silu(gate) * up of a panel's columns: addresses of PANEL numbers."""
    _silu(gate, up, out)


@compiled
def gelu(gate: int, up: int, out: int) -> None:
    """The same with GELU, by its formula with tanh."""
    _gelu(gate, up, out)


@intrinsic
def _cap(typing: Any, place: Any, most: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        place, most = args
        one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), most, ir.Constant(WORD, 0))
        limit = builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_WORDS, [0] * PANEL))
        at = pointer(builder, place, number(0), _FLOATS)
        twice = builder.fdiv(builder.fmul(builder.load(at, align=4), _constant(2.0)), limit)
        above = builder.fadd(_exp(builder, twice), _constant(1.0))
        tanh = builder.fsub(_constant(1.0), builder.fdiv(_constant(2.0), above))
        builder.store(builder.fmul(limit, tanh), at, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@compiled
def cap(place: int, most: float) -> None:
    """x -> most * tanh(x / most) of PANEL numbers at an address."""
    _cap(place, most)
