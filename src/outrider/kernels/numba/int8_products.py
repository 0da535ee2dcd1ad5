"""int8 matrix products compiled by numba, on the int8 dot-product instructions of CPUs.

A matrix is cut into panels of sixteen columns and these into blocks of 64 inputs: the block's whole numbers, four
inputs of a column side by side, and behind them a scale for each column. What is multiplied with it is rounded in
blocks of 64 as well. A block's sum is exact, and blocks are added up in order, so **bits do not depend on the width
of a run** here either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from outrider.kernels.numba.tiles import ARM, FLOAT, PANEL, WORD, by_count, compiled, loop, number, pointer, pointer_to

BLOCK = 64
"""Inputs with a scale of their own."""

RECORD = PANEL * (BLOCK + 4)
"""Bytes of a block of a panel: whole numbers [16, 16, 4] (inputs by four, columns, four inputs), then scales [16]."""

GIVEN = BLOCK + 8
"""Bytes of a block of what is multiplied: whole numbers [64], its scale, and where sums start."""

_SHIFT = 0 if ARM else 128
"""x86 multiplies signed with unsigned bytes: weights are kept shifted, and sums start below zero to make up for it."""

_MOST_ROWS = 4 if ARM else 6
_TOGETHER = 1 if ARM else 2
_LANES = 4 if ARM else 16
_PARTS = PANEL // _LANES

_BYTE = ir.IntType(8)
_BYTES, _SUMS = ir.VectorType(_BYTE, 4 * _LANES), ir.VectorType(WORD, _LANES)
_FLOATS, _FOUR = ir.VectorType(FLOAT, _LANES), ir.VectorType(WORD, 4)


def packed(weight: Any) -> np.ndarray[Any, Any]:
    """Quantise a weight [out, in], which is read some rows at a time -> bytes [out / 16, in / 64, RECORD], both rounded
    up."""
    inputs, outputs = weight.shape[1], weight.shape[0]
    found = np.empty((-(-outputs // PANEL), blocks_of(inputs), RECORD), np.uint8)
    for first in range(0, len(found), _PIECE):
        found[first : first + _PIECE] = _packed(weight[PANEL * first : PANEL * (first + _PIECE)])
    return found


_PIECE = 32
"""Panels packed at a time: what is made on the way stays small, and is used again for the next."""


def _packed(weight: Tensor) -> np.ndarray[Any, Any]:
    weight = weight.detach().to(torch.float32)
    weight = torch.nn.functional.pad(weight, (0, -weight.shape[1] % BLOCK, 0, -weight.shape[0] % PANEL))
    blocks = weight.view(-1, PANEL, weight.shape[1] // BLOCK, BLOCK).transpose(1, 2)  # [P, B, 16, 64]
    scales = blocks.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / 127  # [P, B, 16]
    whole = (blocks / scales[..., None]).round().to(torch.int16) + _SHIFT
    by_four = whole.to(torch.uint8).view(*whole.shape[:3], BLOCK // 4, 4).transpose(2, 3)  # [P, B, 16 of inputs, 16, 4]
    found: np.ndarray[Any, Any] = torch.cat([by_four.flatten(2), scales.contiguous().view(torch.uint8)], -1).numpy()
    return found


@compiled
def blocks_of(inputs: int) -> int:
    return (inputs + BLOCK - 1) // BLOCK


@compiled
def shorten(x: Any, given: Any) -> None:
    """Round rows x [T, in] to eight bits -> given [T, blocks * GIVEN] bytes."""
    for row in range(x.shape[0]):
        for block in range(blocks_of(x.shape[1])):
            place = given.ctypes.data + row * given.shape[1] + block * GIVEN
            whole = carray(pointer_to(place), (BLOCK,), np.int8)
            first, count = block * BLOCK, min(BLOCK, x.shape[1] - block * BLOCK)
            largest = np.float32(1e-30)
            for j in range(count):
                largest = max(largest, abs(x[row, first + j]))
            factor = np.float32(127) / largest
            total = np.int32(0)
            for j in range(count):
                one = np.int32(np.rint(x[row, first + j] * factor))
                whole[j] = one
                total += one
            whole[count:] = 0
            carray(pointer_to(place + BLOCK), (1,), np.float32)[0] = largest / np.float32(127)
            carray(pointer_to(place + BLOCK + 4), (1,), np.int32)[0] = -_SHIFT * total


def _everywhere(builder: Any, one: Any, kind: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), one, ir.Constant(WORD, 0))
    lanes = ir.Constant(ir.VectorType(WORD, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes)


def _bytes_of(builder: Any, row: Any) -> list[Any]:
    """A block of a row, by four inputs, each in all lanes."""
    if not ARM:
        ones = [builder.load(pointer(builder, row, number(4 * step), WORD)) for step in range(BLOCK // 4)]
        return [_everywhere(builder, one, _SUMS) for one in ones]
    found = []
    for step in range(BLOCK // 16):
        sixteen = builder.load(pointer(builder, row, number(16 * step), _FOUR), align=8)
        for lane in range(4):
            lanes = ir.Constant(_FOUR, [lane] * 4)
            four = builder.shuffle_vector(sixteen, ir.Constant(_FOUR, ir.Undefined), lanes)
            found.append(builder.bitcast(four, _BYTES))
    return found


def _dot(builder: Any) -> Any:
    """sums [L], weights, inputs -> sums [L] with four products more in each."""
    if ARM:
        kind = ir.FunctionType(_SUMS, [_SUMS, _BYTES, _BYTES])
        return cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.neon.sdot.v4i32.v16i8")
    kind = ir.FunctionType(_SUMS, [_SUMS] * 3)
    return cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")


def _tile(rows: int, panels: int) -> Any:
    """A function (weights, x, x's stride in bytes, out, out's stride in numbers, blocks)."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        weights, x, x_stride, out, out_stride, blocks = args
        dot = _dot(builder)
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{_LANES}f32")
        read = _BYTES if ARM else _SUMS
        vectors = range(panels * _PARTS)
        starts = [builder.add(weights, builder.mul(blocks, number(RECORD * panel))) for panel in range(panels)]
        nought = ir.Constant(_FLOATS, [0.0] * _LANES)
        block, totals, end = loop(builder, blocks, 1, [nought] * (rows * len(vectors)))
        heres = [builder.add(start, builder.mul(block, number(RECORD))) for start in starts]
        lines = []
        for row in range(rows):
            line = builder.add(x, builder.mul(x_stride, number(row)))
            lines.append(builder.add(line, builder.mul(block, number(GIVEN))))
        sums = []
        for line in lines:
            first = builder.load(pointer(builder, line, number(BLOCK + 4), WORD))
            sums.append([_everywhere(builder, first, _SUMS)] * len(vectors))
        inputs = [_bytes_of(builder, line) for line in lines]
        for step in range(BLOCK // 4):
            for vector in vectors:
                panel, part = divmod(vector, _PARTS)
                place = number(4 * PANEL * step + 4 * _LANES * part)
                given = builder.load(pointer(builder, heres[panel], place, read), align=4)
                for row in range(rows):
                    sums[row][vector] = builder.call(dot, [sums[row][vector], given, inputs[row][step]])
        for vector in vectors:
            panel, part = divmod(vector, _PARTS)
            place = number(PANEL * BLOCK + 4 * _LANES * part)
            scales = builder.load(pointer(builder, heres[panel], place, _FLOATS), align=4)
            for row, line in enumerate(lines):
                one = builder.load(pointer(builder, line, number(BLOCK), FLOAT))
                scale = builder.fmul(scales, _everywhere(builder, one, _FLOATS))
                at = row * len(vectors) + vector
                whole = builder.sitofp(sums[row][vector], _FLOATS)
                totals[at] = builder.call(fma, [whole, scale, totals[at]])
        end(totals)
        for row in range(rows):
            line = builder.add(out, builder.mul(out_stride, number(4 * row)))
            for vector in vectors:
                to = pointer(builder, line, number(4 * _LANES * vector), _FLOATS)
                builder.store(totals[row * len(vectors) + vector], to, align=4)
        return context.get_dummy_value()

    @intrinsic
    def generated(typing: Any, weights: Any, x: Any, x_stride: Any, out: Any, out_stride: Any, blocks: Any) -> Any:
        return types.void(*[types.int64] * 6), generate

    @compiled
    def multiply(weights: int, x: int, x_stride: int, out: int, out_stride: int, blocks: int) -> None:
        generated(weights, x, x_stride, out, out_stride, blocks)

    return multiply


def _tiles(panels: int) -> Any:
    """A function that multiplies up to so many rows as a tile has with so many panels at once."""
    return by_count([_tile(rows, panels) for rows in range(1, _MOST_ROWS + 1)])


_by_one = _tiles(1)
_by_more = _by_one if _TOGETHER == 1 else _tiles(_TOGETHER)


@compiled
def product(weights: int, given: Any, inputs: int, out: int, stride: int, panels: int) -> None:
    """given [T, blocks * GIVEN] times panels -> out [T, 16 * panels], whose rows lie ``stride`` numbers apart."""
    rows, wide, blocks = given.shape[0], given.shape[1], blocks_of(inputs)
    panel = 0
    while panel < panels:
        together = _TOGETHER if panel + _TOGETHER <= panels else 1
        here = weights + RECORD * blocks * panel
        row = 0
        while row < rows:  # in parts as equal as possible
            left = (rows - row + _MOST_ROWS - 1) // _MOST_ROWS
            count = (rows - row + left - 1) // left
            x, to = given.ctypes.data + wide * row, out + 4 * (stride * row + PANEL * panel)
            if together == 1:
                _by_one(count, here, x, wide, to, stride, blocks)
            else:
                _by_more(count, here, x, wide, to, stride, blocks)
            row += count
        panel += together
