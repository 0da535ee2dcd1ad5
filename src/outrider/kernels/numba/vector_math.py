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

from outrider.kernels.numba.amx_products import AVAILABLE as BY_AMX
from outrider.kernels.numba.amx_products import nearest_bfloat16
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


def _higher(builder: Any) -> Any:
    return lambda left, right: builder.select(builder.fcmp_ordered(">", left, right), left, right)


_ROUND = 12582912.0
"""1.5 * 2^23: what is added to it is rounded to a whole number, which stands in the sum's last bits."""

_TERMS = (1.0, 1.0, 0.499993718871066, 0.16666576989701398, 0.041875686339669205, 0.008363179052482655)
"""Of e^x where |x| <= ln 2 / 2, wrong by at most 2e-7: interpolated where a Chebyshev polynomial is zero."""

_FEW_TERMS = (1.0, 0.9999849225937973, 0.4999974888950055, 0.1676703199546338, 0.041833837570352785)
"""The same with one term less, wrong by at most 7e-6: for what is rounded to 16 bits."""


def _exp(builder: Any, x: Any) -> Any:
    """e^x to about two units in the last place; never zero, never infinite: x is limited to -87..88."""
    return _exp_to_88(builder, _call(builder, "minnum", x, _constant(88.0)))


def _exp_to_88(builder: Any, x: Any, terms: tuple[float, ...] = _TERMS) -> Any:
    """The same where x is at most 88. Of what is not a number: as of -87."""
    x = _higher(builder)(x, _constant(-87.0))
    shifted = _call(builder, "fma", x, _constant(1.4426950408889634), _constant(_ROUND))
    whole = builder.fsub(shifted, _constant(_ROUND))
    rest = _call(builder, "fma", whole, _constant(-0.693359375), x)  # ln 2 in two parts
    rest = _call(builder, "fma", whole, _constant(2.12194440e-4), rest)
    power = _constant(terms[-1])
    for term in terms[-2::-1]:
        power = _call(builder, "fma", power, rest, _constant(term))
    # Times two to the whole, by its exponent: a product could be fused with what is added to it at one place only.
    exponent = builder.shl(builder.bitcast(shifted, _WORDS), ir.Constant(_WORDS, [23] * PANEL))
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


def _everywhere(builder: Any, value: Any, kind: Any) -> Any:
    """A vector that has a number in every lane."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(WORD, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_WORDS, [0] * PANEL))


def _masked(builder: Any, vector: Any, begin: Any, stop: Any, otherwise: Any) -> Any:
    """With another number in the lanes before ``begin`` and from ``stop`` on. Most blocks are seen as a whole."""
    begin, stop = (builder.trunc(lane, WORD) for lane in (begin, stop))
    partly = builder.or_(
        builder.icmp_signed(">", begin, ir.Constant(WORD, 0)), builder.icmp_signed("<", stop, ir.Constant(WORD, PANEL))
    )
    before, lanes = builder.block, ir.Constant(_WORDS, list(range(PANEL)))
    with builder.if_then(partly):
        seen = builder.and_(
            builder.icmp_signed("<=", _everywhere(builder, begin, _WORDS), lanes),
            builder.icmp_signed(">", _everywhere(builder, stop, _WORDS), lanes),
        )
        some, inside = builder.select(seen, vector, otherwise), builder.block
    found = builder.phi(_FLOATS)
    found.add_incoming(vector, before)
    found.add_incoming(some, inside)
    return found


def _in_16_bits(builder: Any, weights: Any) -> tuple[Any, Any]:
    """Weights as products read them, and what is added up: bfloat16 is coarse, so there what is multiplied."""
    if IN_HALF:
        scaled = builder.fmul(weights, _constant(HALF_WEIGHT))
        return builder.fptrunc(scaled, ir.VectorType(ir.HalfType(), PANEL)), weights
    return nearest_bfloat16(builder, weights)


def _weigher(short: bool) -> Any:
    """``weigh`` of scores from ``low`` on, ``count`` of them; ``short``: weights are written in 16 bits."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        scores, first, end, low, count, weights_at, out = args

        def block(place: Any) -> Any:
            return pointer(builder, scores, builder.mul(builder.add(low, place), number(4)), _FLOATS)

        def seen(vector: Any, otherwise: float) -> Any:
            begin, stop = (builder.sub(limit, builder.add(low, place)) for limit in (first, end))
            return _masked(builder, vector, begin, stop, _constant(otherwise))

        place, (highest,), done = loop(builder, count, PANEL, [_constant(float("-inf"))])
        highest = _higher(builder)(seen(builder.load(block(place), align=4), float("-inf")), highest)
        done([highest])
        top = _across(builder, highest, _higher(builder))
        place, (total,), done = loop(builder, count, PANEL, [_constant(0.0)])
        below = builder.fsub(builder.load(block(place), align=4), _everywhere(builder, top, _FLOATS))
        weights = seen(_exp_to_88(builder, below, _FEW_TERMS if short else _TERMS), 0.0)
        if short:
            numbers, weights = _in_16_bits(builder, weights)
            offset = builder.mul(builder.add(low, place), number(2))
            builder.store(numbers, pointer(builder, weights_at, offset, numbers.type), align=2)
        else:
            builder.store(weights, block(place), align=4)
        total = builder.fadd(total, weights)
        done([total])
        builder.store(top, pointer(builder, out, number(0), FLOAT))
        builder.store(_across(builder, total, builder.fadd), pointer(builder, out, number(4), FLOAT))
        return context.get_dummy_value()

    @intrinsic
    def generated(
        typing: Any, scores: Any, first: Any, end: Any, low: Any, count: Any, weights_at: Any, out: Any
    ) -> Any:
        return types.void(*[types.int64] * 7), generate

    return generated


_weigh, _weigh_short = _weigher(False), _weigher(IN_HALF or BY_AMX)


@compiled
def weigh(scores: int, first: int, end: int, low: int, high: int, halves: int, out: int) -> None:
    """Scores of the keys that a query sees, first..end -> weights, and zeros around them in low..high.

    -> out: the highest score (that of no key: minus infinity), and the sum of weights. ``low`` and ``high`` are
    multiples of PANEL; ``scores``, ``halves`` and ``out`` are addresses. Weights take the place of the scores, or go
    to ``halves`` in 16 bits: in float16, times HALF_WEIGHT, where the CPU computes in it, in bfloat16 for AMX.
    """
    if halves:
        _weigh_short(scores, first, end, low, high - low, halves, out)
    else:
        _weigh(scores, first, end, low, high - low, halves, out)


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


@intrinsic
def _turn(typing: Any, first: Any, apart: Any, cos: Any, sin: Any, out: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        first, apart, cos, sin, out = args
        second, to = builder.add(first, apart), builder.add(out, apart)
        x, y, cos, sin = (
            builder.load(pointer(builder, at, number(0), _FLOATS), align=4) for at in (first, second, cos, sin)
        )
        left = _call(builder, "fma", builder.fneg(y), sin, builder.fmul(x, cos))
        right = _call(builder, "fma", x, sin, builder.fmul(y, cos))
        for found, at in ((left, out), (right, to)):
            builder.store(found, pointer(builder, at, number(0), _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@compiled
def turn(first: int, apart: int, cos: int, sin: int, out: int) -> None:
    """PANEL pairs of numbers, ``apart`` bytes from one to the other, rotated: addresses. ``out``: as ``first``."""
    _turn(first, apart, cos, sin, out)
