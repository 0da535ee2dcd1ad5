"""Matrix products in float32 compiled by numba, and the atomic counters that threads share.

Weights are stored as bfloat16 and multiplied as float32: a bfloat16 is the upper half of a float32, so widening costs
one instruction and no accuracy, and half the bytes are read from memory. Weights of models that were not saved in
bfloat16 are stored as float32. Sixteen columns are stored side by side (a panel). Each output is one chain of fused
multiply-adds in the order of the inputs, whatever the number of rows or panels in the run. So the products are
batch-invariant: **bits do not depend on the width of a run.**
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.code_cache import OPTIONS
from outrider.runtime import cpu

PANEL = 16
"""Columns of a panel [inputs, 16]; of bfloat16 [inputs, 8, 2]: columns j and j + 8 are the halves of a 32-bit word."""

_HALF = PANEL // 2
_STEP = 4
"""Inputs a turn of the inner loop takes."""

ARM = cpu.facts().arm

compiled = njit(**OPTIONS)

WIDE = cpu.facts().wide_vectors
"""Whether there are vectors of 512 bits, and 32 registers for them."""

AHEAD = 0 if ARM else 2048
"""Bytes before they are needed, weights are asked for. ARM reads ahead by itself."""

MOST_ROWS = 5 if ARM else 12 if WIDE else 6
"""Rows of a tile: as many as there are registers for. More take another pass over the weights."""


def joined_panels(panels: int) -> int:
    """Panels whose like columns share a vector: two where that fills it, for half the instructions."""
    return 2 if WIDE and panels % 2 == 0 else 1


def together(rows: int) -> int:
    """Panels that a tile of so many rows is best at.

    Of a single panel at a time, one stream of memory is read and few sums run side by side: measured on a Xeon, tiles
    of one panel took 1.4 times as long as those of four. ARM reads ahead by itself, and needs two registers where x86
    needs one.
    """
    if ARM:
        return 1
    most = 26 if WIDE else 12  # sums; the other registers hold weights and inputs
    return max(panels for panels in (1, 2, 4) if panels == 1 or 2 * panels * rows // joined_panels(panels) <= most)


_LONG, WORD, FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_TURN = ir.VectorType(FLOAT, _STEP)


def number(value: int) -> Any:
    return ir.Constant(_LONG, value)


def pointer(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


def _lanes(builder: Any, vector: Any, places: Iterable[int], second: Any = None) -> Any:
    """Chosen lanes of a vector, or of two."""
    chosen = [ir.Constant(WORD, place) for place in places]
    second = ir.Constant(vector.type, ir.Undefined) if second is None else second
    return builder.shuffle_vector(vector, second, ir.Constant(ir.VectorType(WORD, len(chosen)), chosen))


def _inputs(builder: Any, row: Any, place: Any, lanes: int) -> list[Any]:
    """The next inputs of a row, each in all lanes: ARM multiplies by a lane, others repeat what they load."""
    if ARM:
        turn = builder.load(pointer(builder, row, place, _TURN), align=4)
        return [_lanes(builder, turn, [step] * lanes) for step in range(_STEP)]
    found = []
    for step in range(_STEP):
        one = builder.load(pointer(builder, row, builder.add(place, number(4 * step)), FLOAT))
        first = builder.insert_element(ir.Constant(_TURN, ir.Undefined), one, ir.Constant(WORD, 0))
        found.append(_lanes(builder, first, [0] * lanes))
    return found


def _loaded(builder: Any, addresses: Sequence[Any], place: Any, kind: Any) -> Any:
    """Eight numbers of a panel, or of two side by side."""
    loaded = [
        builder.load(pointer(builder, address, place, ir.VectorType(kind, _HALF)), align=2) for address in addresses
    ]
    return loaded[0] if len(loaded) == 1 else _lanes(builder, loaded[0], range(PANEL), loaded[1])


def _columns(builder: Any, addresses: Sequence[Any], place: Any, size: int) -> tuple[Any, Any]:
    """Columns 0..7 and 8..15 of one input in float32, of a panel or of two side by side; ``size``: bytes each."""
    if size == 4:
        behind = builder.add(place, number(4 * _HALF))
        return _loaded(builder, addresses, place, FLOAT), _loaded(builder, addresses, behind, FLOAT)
    words = _loaded(builder, addresses, place, WORD)
    low = builder.shl(words, ir.Constant(words.type, [16] * words.type.count))
    high = builder.and_(words, ir.Constant(words.type, [0xFFFF0000] * words.type.count))
    floats = ir.VectorType(FLOAT, words.type.count)
    return builder.bitcast(low, floats), builder.bitcast(high, floats)


def fetch(builder: Any, address: Any, place: Any) -> None:
    """Ask for the line of memory that is needed in a while."""
    kinds = [ir.IntType(8).as_pointer(), WORD, WORD, WORD]
    asked = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0")
    at = pointer(builder, address, builder.add(place, number(AHEAD)), ir.IntType(8))
    builder.call(asked, [at, *(ir.Constant(WORD, value) for value in (0, 3, 1))])


def loop(builder: Any, turns: Any, step: int, first: list[Any]) -> tuple[Any, list[Any], Any]:
    """Begin a loop over 0, step, 2 step ... below ``turns`` that carries values -> counter, values, how to end it."""
    before, body, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    place = builder.phi(_LONG)
    carried = [builder.phi(value.type) for value in first]

    def end(last: list[Any]) -> None:
        further = builder.add(place, number(step))
        latch = builder.block  # of a loop with another one inside not where it began
        for phi, start, value in zip([place, *carried], [number(0), *first], [further, *last], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(value, latch)
        builder.cbranch(builder.icmp_signed("<", further, turns), body, after)
        builder.position_at_end(after)

    return place, list(carried), end


def tile(rows: int, panels: int, size: int) -> Any:
    """A function (weights, x, x's stride, out, out's stride, inputs): addresses in bytes, strides in numbers.

    x [rows, inputs] times ``panels`` panels, one behind the other -> out [rows, 16 * panels]. Weights have ``size``
    bytes: 2 are bfloat16, 4 float32.
    """

    joined = joined_panels(panels)
    lanes, vectors = _HALF * joined, 2 * panels // joined

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        weights, x, x_stride, out, out_stride, inputs = args
        floats = ir.VectorType(FLOAT, lanes)
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(floats, [floats] * 3), f"llvm.fma.v{lanes}f32"
        )
        lines = [builder.add(x, builder.mul(x_stride, number(4 * row))) for row in range(rows)]
        starts = [builder.add(weights, builder.mul(inputs, number(size * PANEL * panel))) for panel in range(panels)]
        nought = ir.Constant(floats, [0.0] * lanes)
        place, totals, end = loop(builder, inputs, _STEP, [nought] * (vectors * rows))
        given = [_inputs(builder, line, builder.mul(place, number(4)), lanes) for line in lines]
        for step in range(_STEP):
            offset = builder.mul(builder.add(place, number(step)), number(size * PANEL))
            if AHEAD and (size == 4 or step % 2 == 0):  # a line of memory has 64 bytes
                for start in starts:
                    fetch(builder, start, offset)
            groups = [starts[first : first + joined] for first in range(0, panels, joined)]
            halves = [half for group in groups for half in _columns(builder, group, offset, size)]
            for row in range(rows):
                for column, half in enumerate(halves, start=vectors * row):
                    totals[column] = builder.call(multiply, [given[row][step], half, totals[column]])
        end(totals)
        for row in range(rows):
            line = builder.add(out, builder.mul(out_stride, number(4 * row)))
            for vector in range(vectors):
                total = totals[vectors * row + vector]
                for part in range(joined):
                    some = _lanes(builder, total, range(_HALF * part, _HALF * (part + 1)))
                    column = PANEL * (vector // 2 * joined + part) + vector % 2 * _HALF
                    builder.store(some, pointer(builder, line, number(4 * column), some.type), align=4)
        return context.get_dummy_value()

    @intrinsic
    def generated(typing: Any, weights: Any, x: Any, x_stride: Any, out: Any, out_stride: Any, inputs: Any) -> Any:
        return types.void(*[types.int64] * 6), generate

    @compiled  # a function of its own: what calls it must not compile it once more at every place
    def product(weights: int, x: int, x_stride: int, out: int, out_stride: int, inputs: int) -> None:
        generated(weights, x, x_stride, out, out_stride, inputs)

    return product


def by_count(functions: Sequence[Any]) -> Any:
    """A function (count, arguments): the first, second ... of these, for a count from 1 on; beyond them the last."""
    first, *others = functions
    if not others:

        @compiled
        def last(count: int, *arguments: Any) -> None:
            first(*arguments)

        return last
    beyond = by_count(others)

    @compiled
    def chosen(count: int, *arguments: Any) -> None:
        if count == 1:
            first(*arguments)
        else:
            beyond(count - 1, *arguments)

    return chosen


# --- threads that share work -------------------------------------------------------------------------


@intrinsic
def count_up(typing: Any, address: Any, by: Any) -> Any:
    """Add to the whole number at an address -> what it was."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _LONG.as_pointer()), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def count_of(typing: Any, address: Any) -> Any:
    """The whole number at an address, and with it everything written before it was counted up."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _LONG.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def float_of_bits(typing: Any, bits: Any) -> Any:
    """An int32's bits as a float32."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], FLOAT)

    return types.float32(types.int32), generate


@intrinsic
def pointer_to(typing: Any, address: Any) -> Any:
    """An address as what ``numba.carray`` takes."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate
