"""Matrix products by AMX, the matrix unit of some x86 CPUs, compiled by numba: sixteen rows cost little more than one.

AMX multiplies bfloat16 and adds in float32. Weights of bfloat16 are exact there. An input is split into two bfloat16
numbers, the nearest one and the nearest to what is left: together they have 17 significant bits, and their products are
added one behind the other. As in ``tiles.py`` each output is a sum over one row in a fixed order, so products are
batch-invariant: **bits do not depend on the width of a run.**

A third part would make inputs exact; it took an eighth longer at one row, and half as long again at 64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.tiles import FLOAT, PANEL, WORD, by_count, compiled, fetch, loop, number, pointer
from outrider.runtime import cpu

AVAILABLE = cpu.facts().has_amx

PARTS = 2
"""Numbers of bfloat16 that an input is split into."""

CHUNK = 32
"""Inputs that one instruction multiplies; panels are filled up to whole chunks."""

ROWS = 16
"""Rows that one instruction multiplies, at most."""

_MOST_PANELS = 4
"""Panels whose sums are in registers: there are eight, and inputs take two, weights one."""

_WEIGHTS = 7
"""The register of weights."""

_CHUNK_BYTES = 2 * PANEL * CHUNK

_BYTE, _NOTHING = ir.IntType(8), ir.VoidType()
_ADDRESS = _BYTE.as_pointer()
_FLOATS, _WORDS = ir.VectorType(FLOAT, 16), ir.VectorType(WORD, 16)
_HALVES = ir.VectorType(ir.IntType(16), 16)


def _call(builder: Any, name: str, *arguments: Any) -> None:
    kinds = [argument.type for argument in arguments]
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_NOTHING, kinds), f"llvm.x86.{name}")
    builder.call(function, arguments)


def _register(which: int) -> Any:
    return ir.Constant(_BYTE, which)


def _words(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * 16)


def _at(builder: Any, address: Any, offset: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), _ADDRESS)


@intrinsic
def _configure(typing: Any, address: Any) -> Any:
    """Set the shapes of all registers as the 64 bytes at an address say."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _call(builder, "ldtilecfg", _at(builder, args[0], number(0)))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _release(typing: Any) -> Any:
    """The registers are not needed any more: nobody has to save them."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _shapes() -> np.ndarray[Any, Any]:
    """[17, 64]: what ``_configure`` reads for products of so many rows."""
    found = np.zeros((ROWS + 1, 64), np.uint8)
    found[:, 0] = 1
    found[:, 16:32].view(np.uint16)[:] = 64  # bytes of a line, in each register
    found[:, 48:56] = np.arange(ROWS + 1)[:, None]  # lines
    found[:, 48 + _WEIGHTS] = CHUNK // 2
    return found


SHAPES = _shapes()


class Registers(NamedTuple):
    """What a thread's registers are set to."""

    shapes: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]  # [1]: for products of so many; 0: they are free


@compiled
def release(registers: Registers) -> None:
    if registers.rows[0]:
        _release()
        registers.rows[0] = 0


@compiled
def chunks_of(inputs: int) -> Any:
    return (inputs + CHUNK - 1) // CHUNK


@compiled
def part_size(inputs: int) -> Any:
    """Numbers that the parts of a row take."""
    return PARTS * CHUNK * chunks_of(inputs)


@compiled
def panel_size(inputs: int) -> Any:
    """Bytes of a panel."""
    return _CHUNK_BYTES * chunks_of(inputs)


@intrinsic
def _split_chunk(typing: Any, line: Any, to: Any, stride: Any) -> Any:
    """32 numbers at an address -> the nearest bfloat16 numbers, and the nearest to what is left of them, at another
    address, ``stride`` bytes apart."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        line, to, stride = args
        for half in range(2):
            left = builder.load(pointer(builder, line, number(64 * half), _FLOATS), align=4)
            for part in range(PARTS):
                bits = builder.bitcast(left, _WORDS)
                odd = builder.and_(builder.lshr(bits, _words(16)), _words(1))
                bits = builder.add(bits, builder.add(odd, _words(0x7FFF)))  # ties to even
                upper = builder.trunc(builder.lshr(bits, _words(16)), _HALVES)
                place = builder.add(builder.mul(stride, number(part)), number(32 * half))
                builder.store(upper, pointer(builder, to, place, _HALVES), align=2)
                kept = builder.bitcast(builder.and_(bits, _words(0xFFFF0000)), _FLOATS)
                left = builder.fsub(left, kept)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@compiled
def split(x: Any, parts: Any) -> None:
    """x [rows, inputs] -> parts [rows, ``part_size``]: [chunks, 2, 16, 32] for every sixteen rows."""
    rows, inputs = x.shape
    rest = inputs % CHUNK
    last = np.zeros(CHUNK, np.float32)
    for row in range(rows):
        first = row // ROWS * ROWS
        size = 2 * CHUNK * min(ROWS, rows - first)  # bytes of a part of these rows
        line, to = x[row].ctypes.data, parts[first].ctypes.data + 2 * CHUNK * (row - first)
        for chunk in range(inputs // CHUNK):
            _split_chunk(line + 4 * CHUNK * chunk, to + PARTS * size * chunk, size)
        if rest:
            last[:rest] = x[row, inputs - rest :]
            _split_chunk(last.ctypes.data, to + PARTS * size * (inputs // CHUNK), size)


def _tile(panels: int, prefetch: bool) -> Any:
    """A function (weights, parts, rows, chunks, out, out's stride): addresses and stride in bytes.

    Up to sixteen rows times ``panels`` panels, one behind the other -> out [rows, 16 * panels]. ``prefetch``: weights
    come from memory, and are asked for ahead of time.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        weights, parts, rows, chunks, out, stride = args
        line, size = number(64), builder.mul(rows, number(64))
        for panel in range(panels):
            _call(builder, "tilezero", _register(panel))
        chunk, _, end = loop(builder, chunks, 1, [])
        here = builder.add(parts, builder.mul(chunk, builder.mul(size, number(PARTS))))
        for part in range(PARTS):
            at = _at(builder, here, builder.mul(size, number(part)))
            _call(builder, "tileloadd64", _register(panels + part), at, line)
        for panel in range(panels):
            before = builder.add(builder.mul(chunks, number(panel)), chunk)
            start = builder.add(weights, builder.mul(before, number(_CHUNK_BYTES)))
            for offset in range(0, _CHUNK_BYTES if prefetch else 0, 64):
                fetch(builder, start, number(offset))
            _call(builder, "tileloadd64", _register(_WEIGHTS), _at(builder, start, number(0)), line)
            for part in range(PARTS):
                _call(builder, "tdpbf16ps", _register(panel), _register(panels + part), _register(_WEIGHTS))
        end([])
        for panel in range(panels):
            _call(builder, "tilestored64", _register(panel), _at(builder, out, number(4 * PANEL * panel)), stride)
        return context.get_dummy_value()

    @intrinsic
    def generated(typing: Any, weights: Any, parts: Any, rows: Any, chunks: Any, out: Any, stride: Any) -> Any:
        return types.void(*[types.int64] * 6), generate

    @compiled
    def product(weights: int, parts: int, rows: int, chunks: int, out: int, stride: int) -> None:
        generated(weights, parts, rows, chunks, out, stride)

    return product


_from_memory, _from_cache = (by_count([_tile(panels, prefetch) for panels in (1, 2, 4)]) for prefetch in (True, False))


@compiled
def _product(weights: int, parts: Any, registers: Registers, out: int, stride: int, panels: int) -> None:
    """Rows that were split, times panels -> out [rows, 16 * panels], whose rows lie ``stride`` numbers apart."""
    rows, numbers = parts.shape
    chunks = numbers // (PARTS * CHUNK)
    panel = 0
    while panel < panels:
        wide = _MOST_PANELS
        while panel + wide > panels:
            wide //= 2
        here = weights + _CHUNK_BYTES * chunks * panel
        for row in range(0, rows, ROWS):
            count = min(ROWS, rows - row)
            if count != registers.rows[0]:
                _configure(registers.shapes[count].ctypes.data)
                registers.rows[0] = count
            given, to = parts[row].ctypes.data, out + 4 * (stride * row + PANEL * panel)
            which = wide // 2 + 1  # of one, two and four panels
            if row == 0:
                _from_memory(which, here, given, count, chunks, to, 4 * stride)
            else:
                _from_cache(which, here, given, count, chunks, to, 4 * stride)
        panel += wide


@compiled
def _no_product(weights: int, parts: Any, registers: Registers, out: int, stride: int, panels: int) -> None: ...


# Other CPUs have no instructions for it, and nothing calls it there.
amx_product = _product if AVAILABLE else _no_product
