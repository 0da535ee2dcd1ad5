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
from llvmlite.binding import initialize_native_asmparser
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from outrider.kernels.numba.tiles import FLOAT, PANEL, WORD, by_count, compiled, fetch, loop, number, pointer
from outrider.runtime import cpu

AVAILABLE = cpu.facts().has_amx
if AVAILABLE:
    initialize_native_asmparser()  # for ``nearest_bfloat16``

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


def call_amx(builder: Any, name: str, *arguments: Any) -> None:
    """An instruction, as LLVM names it. For other CPUs code is compiled without, and nothing calls it."""
    if not AVAILABLE:
        return
    kinds = [argument.type for argument in arguments]
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_NOTHING, kinds), f"llvm.x86.{name}")
    builder.call(function, arguments)


def register(which: int) -> Any:
    return ir.Constant(_BYTE, which)


def at_address(builder: Any, address: Any, offset: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), _ADDRESS)


@intrinsic
def configure(typing: Any, address: Any) -> Any:
    """Set the shapes of all registers as the 64 bytes at an address say."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        call_amx(builder, "ldtilecfg", at_address(builder, args[0], number(0)))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def release(typing: Any) -> Any:
    """The registers are not needed any more: nobody has to save them."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        call_amx(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _shapes() -> np.ndarray[Any, Any]:
    """[17, 64]: what ``configure`` reads for products of so many rows."""
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
    rows: np.ndarray[Any, Any]  # [1]: for products of so many; 0: that is not known


@compiled
def begin_products(registers: Registers) -> None:
    """Products begin: what the registers are set to is not known."""
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


def nearest_bfloat16(builder: Any, vector: Any) -> tuple[Any, Any]:
    """Sixteen numbers -> the nearest bfloat16 numbers, and these as float32."""
    nearest = ir.FunctionType(_HALVES, [_FLOATS])  # LLVM's name for it has a type that llvmlite does not know
    found = builder.asm(nearest, "vcvtneps2bf16 $1, $0", "=v,v", [vector], False)
    words = builder.shl(builder.zext(found, _WORDS), ir.Constant(_WORDS, [16] * 16))
    return found, builder.bitcast(words, _FLOATS)


def _parts_of(builder: Any, vector: Any) -> list[Any]:
    """Sixteen numbers -> the nearest bfloat16 numbers, and the nearest to what is left of them."""
    found, left = [], vector
    for _ in range(PARTS if AVAILABLE else 0):
        numbers, kept = nearest_bfloat16(builder, left)
        found.append(numbers)
        left = builder.fsub(left, kept)
    return found


@intrinsic
def _split_sixteen(typing: Any, line: Any, to: Any, stride: Any) -> Any:
    """Of 16 numbers at an address the parts, ``stride`` bytes apart, at another address."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        line, to, stride = args
        vector = builder.load(pointer(builder, line, number(0), _FLOATS), align=4)
        for part, numbers in enumerate(_parts_of(builder, vector)):
            builder.store(numbers, pointer(builder, to, builder.mul(stride, number(part)), _HALVES), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@compiled
def split_line(line: int, count: int, to: int, stride: int) -> None:
    """Numbers of float32 at an address, a multiple of sixteen -> their parts, ``stride`` bytes apart."""
    for place in range(0, count, PANEL):
        _split_sixteen(line + 4 * place, to + 2 * place, stride)


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
            split_line(line + 4 * CHUNK * chunk, CHUNK, to + PARTS * size * chunk, size)
        if rest:
            last[:rest] = x[row, inputs - rest :]
            split_line(last.ctypes.data, CHUNK, to + PARTS * size * (inputs // CHUNK), size)


def _tile(panels: int, prefetch: bool) -> Any:
    """A function (weights, parts, rows, chunks, out, out's stride): addresses and stride in bytes.

    Up to sixteen rows times ``panels`` panels, one behind the other -> out [rows, 16 * panels]. ``prefetch``: weights
    come from memory, and are asked for ahead of time.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        weights, parts, rows, chunks, out, stride = args
        line, size = number(64), builder.mul(rows, number(64))
        for panel in range(panels):
            call_amx(builder, "tilezero", register(panel))
        chunk, _, end = loop(builder, chunks, 1, [])
        here = builder.add(parts, builder.mul(chunk, builder.mul(size, number(PARTS))))
        for part in range(PARTS):
            at = at_address(builder, here, builder.mul(size, number(part)))
            call_amx(builder, "tileloadd64", register(panels + part), at, line)
        for panel in range(panels):
            before = builder.add(builder.mul(chunks, number(panel)), chunk)
            start = builder.add(weights, builder.mul(before, number(_CHUNK_BYTES)))
            for offset in range(0, _CHUNK_BYTES if prefetch else 0, 64):
                fetch(builder, start, number(offset))
            call_amx(builder, "tileloadd64", register(_WEIGHTS), at_address(builder, start, number(0)), line)
            for part in range(PARTS):
                call_amx(builder, "tdpbf16ps", register(panel), register(panels + part), register(_WEIGHTS))
        end([])
        for panel in range(panels):
            call_amx(
                builder, "tilestored64", register(panel), at_address(builder, out, number(4 * PANEL * panel)), stride
            )
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
def amx_product(weights: int, parts: Any, registers: Registers, out: int, stride: int, panels: int) -> None:
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
                configure(registers.shapes[count].ctypes.data)
                registers.rows[0] = count
            given, to = parts[row].ctypes.data, out + 4 * (stride * row + PANEL * panel)
            which = wide // 2 + 1  # of one, two and four panels
            if row == 0:
                _from_memory(which, here, given, count, chunks, to, 4 * stride)
            else:
                _from_cache(which, here, given, count, chunks, to, 4 * stride)
        panel += wide
