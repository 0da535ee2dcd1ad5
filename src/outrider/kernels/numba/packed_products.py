"""Matrix products with weights of four to eight bits, compiled by numba, by dot products of bytes.

Inputs are rounded to eight bits, with a scale for every 32 of them (every 256 where a matrix has K formats), as
llama.cpp does. Sums within a unit or block are whole numbers and exact, and these are added up in the order of the
inputs: batch-invariant, **bits do not depend on the width of a run**, nor on which dot products a CPU has.

A matrix is a table of its panels, int64 [panels, 2] (where the panel begins, counted from the table's first byte, and
the code of its format), and the panels. So parts of a matrix may have different formats.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from outrider.kernels.numba.code_cache import compiling, native
from outrider.kernels.numba.packed_dots import Vectors, vectors
from outrider.kernels.numba.packed_formats import BFLOAT16, FORMATS, UNIT, Format
from outrider.kernels.numba.tiles import (
    AHEAD,
    FLOAT,
    PANEL,
    WORD,
    fetch,
    float_of_bits,
    loop,
    number,
    pointer,
    pointer_to,
)
from outrider.kernels.numba.tiles import tile as bfloat16_tile
from outrider.runtime import cpu

strict = njit(nogil=True, error_model="numpy")
"""Compiled as it is written: no multiplication is fused with an addition, and no sum is reordered."""

MOST_ROWS = 4
"""Rows of a tile."""

GIVEN = UNIT + 12
"""Bytes that a unit of a row of inputs takes: whole numbers [32], two sums of 16 of them, the scale."""


@strict
def units_of(inputs: int) -> int:
    return (inputs + UNIT - 1) // UNIT


@strict
def shorten(x: Any, span: int, given: Any) -> None:
    """Round rows x [T, inputs] to eight bits, with one scale for ``span`` inputs -> given [T, units * GIVEN] bytes.

    A row is its whole numbers, then the sums of each 16, then the scale of each unit.
    """
    inputs, units, x_bits = x.shape[1], units_of(x.shape[1]), x.view(np.int32)
    for row in range(x.shape[0]):
        line = given[row]
        whole = line[: UNIT * units].view(np.int8)
        sums = line[UNIT * units : (UNIT + 8) * units].view(np.int32)
        scales = line[(UNIT + 8) * units : GIVEN * units].view(np.float32)
        for first in range(0, inputs, span):
            end = min(first + span, inputs)
            bits = np.int32(0x0DA24260)  # 1e-30; what is no number has more bits than all others, and stays so
            for j in range(first, end):
                bits = max(bits, x_bits[row, j] & np.int32(0x7FFFFFFF))
            largest = float_of_bits(bits)
            factor = np.float32(127) / largest
            for j in range(first, end):
                whole[j] = np.int32(np.rint(x[row, j] * factor))
            for unit in range(first // UNIT, units_of(end)):
                scales[unit] = largest / np.float32(127)
        whole[inputs:] = 0
        for group in range(2 * units):
            total = np.int32(0)
            for j in range(16 * group, 16 * group + 16):
                total += np.int32(whole[j])
            sums[group] = total


class _Tile:
    """Emits the code of one tile: some rows of inputs times one panel of one format."""

    def __init__(self, v: Vectors, builder: Any, form: Format, lines: list[Any], units: Any) -> None:
        self.v, self.builder, self.form, self.lines = v, builder, form, lines
        self.rows = range(len(lines))
        self.sums_at, self.scales_at = builder.mul(units, number(UNIT)), builder.mul(units, number(UNIT + 8))

    def _of_row(self, row: int, start: Any, place: Any, kind: Any) -> Any:
        """A number out of a row's sums or scales."""
        at = self.builder.add(self.lines[row], start)
        return self.builder.load(pointer(self.builder, at, self.builder.mul(place, number(4)), kind), align=1)

    def _sums(self, unit: Any) -> list[list[Any]]:
        """By row, sums of a unit's groups of inputs: two of 16, or one of 32."""
        builder, found = self.builder, []
        for row in self.rows:
            places = [builder.add(builder.mul(unit, number(2)), number(group)) for group in range(2)]
            both = [self._of_row(row, self.sums_at, place, WORD) for place in places]
            found.append(both if self.form.groups == 2 else [builder.add(*both)])
        return found

    def _dots(self, at: Any, unit: Any, sums: list[list[Any]]) -> list[list[list[Any]]]:
        """A unit's weights, less their offset, times inputs: by group, row and part of the panel."""
        builder, v, form = self.builder, self.v, self.form
        offset = form.offset if form.bits < 8 or v.signed else 128
        found = []
        for group in range(form.groups):
            firsts = [builder.mul(sums[row][group], ir.Constant(WORD, -offset)) for row in self.rows]
            found.append([[v.everywhere(first, v.sums)] * v.parts for first in firsts])
        given = [v.inputs(builder.add(line, builder.mul(unit, number(UNIT)))) for line in self.lines]
        for part in range(v.parts):
            for step, weights in v.steps(form, at, part):
                group = step * form.groups // 8
                for row in self.rows:
                    found[group][row][part] = v.dot(found[group][row][part], weights, given[row][step], form.bits < 8)
        return found

    def _add(self, totals: list[Any], whole: list[list[Any]], scales: list[Any], unit: Any, sign: int = 1) -> list[Any]:
        """totals + whole numbers * scales * the scale of a row, by row and part."""
        builder, v, found = self.builder, self.v, []
        for row in self.rows:
            scale = self._of_row(row, self.scales_at, unit, FLOAT)
            every = v.everywhere(builder.fmul(scale, ir.Constant(FLOAT, float(sign))), v.floats)
            for part in range(v.parts):
                factor = builder.fmul(scales[part], every)
                whole_part = builder.sitofp(whole[row][part], v.floats)
                found.append(v.fma(whole_part, factor, totals[v.parts * row + part]))
        return found

    def unit(self, at: Any, unit: Any, totals: list[Any]) -> list[Any]:
        """totals + a unit of a format with scales in float16."""
        builder, v, form = self.builder, self.v, self.form
        sums = self._sums(unit)
        whole = self._dots(at, unit, sums)[0]
        totals = self._add(totals, whole, v.halves(builder.add(at, number(form.values))), unit)
        if form.minimum:
            minima = v.halves(builder.add(at, number(form.values + 2 * PANEL)))
            every = [[v.everywhere(sums[row][0], v.sums)] * v.parts for row in self.rows]
            totals = self._add(totals, every, minima, unit)
        return totals

    def block(self, at: Any, block: Any, totals: list[Any]) -> list[Any]:
        """totals + a block of a K format, whose units are added up as whole numbers before."""
        builder, v, form = self.builder, self.v, self.form
        count, first = len(self.rows) * v.parts, builder.mul(block, number(8))
        nothing = [ir.Constant(v.sums, [0] * v.lanes)] * (count * (1 + form.minimum))
        inner, whole, end = loop(builder, number(8), 1, nothing)
        here, unit = builder.add(at, builder.mul(inner, number(form.unit))), builder.add(first, inner)
        sums = self._sums(unit)
        factors = [v.bytes(builder.add(here, number(form.values + PANEL * k))) for k in range(form.groups)]
        for group, found in enumerate(self._dots(here, unit, sums)):
            for row in self.rows:
                for part in range(v.parts):
                    place = v.parts * row + part
                    whole[place] = builder.add(whole[place], builder.mul(found[row][part], factors[group][part]))
        if form.minimum:
            minima = v.bytes(builder.add(here, number(form.values + PANEL * form.groups)))
            for row in self.rows:
                every = v.everywhere(sums[row][0], v.sums)
                for part in range(v.parts):
                    place = count + v.parts * row + part
                    whole[place] = builder.add(whole[place], builder.mul(every, minima[part]))
        end(whole)
        by_row = [whole[first : first + v.parts] for first in range(0, len(whole), v.parts)]
        behind = builder.add(at, number(8 * form.unit))
        totals = self._add(totals, by_row[: len(self.rows)], v.halves(behind), first)
        if form.minimum:
            minima = v.halves(builder.add(behind, number(2 * PANEL)))
            totals = self._add(totals, by_row[len(self.rows) :], minima, first, sign=-1)
        return totals


def _emit_tile(v: Vectors, builder: Any, form: Format, rows: int, args: Any) -> None:
    """The code of a tile, with the arguments of ``_tiles``: rows times one panel of a format."""
    weights, x, x_stride, out, out_stride, units = args
    lines = [builder.add(x, builder.mul(x_stride, number(row))) for row in range(rows)]
    emit = _Tile(v, builder, form, lines, units)
    records = builder.sdiv(units, number(8)) if form.blocks else units
    nought = ir.Constant(v.floats, [0.0] * v.lanes)
    record, totals, end = loop(builder, records, 1, [nought] * (rows * v.parts))
    at = builder.add(weights, builder.mul(record, number(form.record)))
    if AHEAD:
        for line in range(0, form.record, 64):
            fetch(builder, at, number(line))
    totals = emit.block(at, record, totals) if form.blocks else emit.unit(at, record, totals)
    end(totals)
    for row in range(rows):
        line = builder.add(out, builder.mul(out_stride, number(4 * row)))
        for part in range(v.parts):
            to = pointer(builder, line, number(4 * v.lanes * part), v.floats)
            builder.store(totals[v.parts * row + part], to, align=4)


def tiles(facts: cpu.CpuFacts, most: int = MOST_ROWS) -> Any:
    """A function (format's code, up to ``most`` rows, weights, x, x's stride in bytes, out, out's stride in numbers,
    units): rows times one panel. One switch over all tiles: functions that call each other take long to compile."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        v, after = vectors(builder, facts), builder.append_basic_block("end")
        which = builder.add(builder.mul(args[0], number(most)), args[1])
        choice = builder.switch(which, after)
        for code, form in enumerate(FORMATS):
            for rows in range(1, most + 1):
                case = builder.append_basic_block(f"{form.name}_{rows}")
                choice.add_case(number(most * code + rows), case)
                builder.position_at_end(case)
                _emit_tile(v, builder, form, rows, args[2:])
                builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    @intrinsic
    def generated(
        typing: Any, code: Any, rows: Any, weights: Any, x: Any, x_stride: Any, out: Any, out_stride: Any, units: Any
    ) -> Any:
        return types.void(*[types.int64] * 8), generate

    @strict
    def multiply(
        code: int, rows: int, weights: int, x: int, x_stride: int, out: int, out_stride: int, units: int
    ) -> None:
        generated(code, rows, weights, x, x_stride, out, out_stride, units)

    return multiply


_multiply = tiles(cpu.facts())
_bfloat16 = bfloat16_tile(1, 1, 2)


@strict
def packed_product(
    matrix: int, first: int, panels: int, rows: int, inputs: int, x: int, given: int, out: int, stride: int
) -> None:
    """Rows times panels of a matrix -> out [rows, 16 * panels], whose rows lie ``stride`` numbers apart.

    By their addresses: x [rows, inputs], and what ``shorten`` made of it.
    """
    units = units_of(inputs)
    table = carray(pointer_to(matrix), (first + panels, 2), np.int64)
    for panel in range(panels):
        here, code = matrix + table[first + panel, 0], table[first + panel, 1]
        to, row = out + 4 * PANEL * panel, 0
        while row < rows and code == BFLOAT16:
            _bfloat16(here, x + 4 * inputs * row, inputs, to + 4 * stride * row, stride, inputs)
            row += 1
        while row < rows:  # in parts as equal as possible
            left = (rows - row + MOST_ROWS - 1) // MOST_ROWS
            count = (rows - row + left - 1) // left
            begin = given + GIVEN * units * row
            _multiply(code, count, here, begin, GIVEN * units, to + 4 * stride * row, stride, units)
            row += count


_ARGUMENTS = 9


@cache
def address() -> int:
    """Where ``packed_product`` is in memory, once it is compiled. Called by its address it is compiled once, and not
    anew into every function around it."""
    with compiling("packed_product", "products of packed weights", seconds=10):
        return native(packed_product.py_func, types.void(*[types.int64] * _ARGUMENTS))


@intrinsic
def call_product(
    typing: Any, where: Any, matrix: Any, first: Any, panels: Any, rows: Any, inputs: Any, x: Any, given: Any, out: Any,
    stride: Any,
) -> Any:  # fmt: skip
    """``packed_product`` by its address."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * _ARGUMENTS)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * (1 + _ARGUMENTS)), generate
