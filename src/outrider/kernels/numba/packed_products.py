"""Matrix products with weights of four to eight bits, compiled by numba, by dot products of bytes.

Inputs are rounded to eight bits, with a scale for every 32 of them (every 256 where a matrix has K formats), as
llama.cpp does. Sums within a unit or block are whole numbers and exact, and these are added up in the order of the
inputs: batch-invariant, **bits do not depend on the width of a run**, nor on which dot products a CPU has. Where
there are rows enough, AMX multiplies (``packed_amx.py``), with the same bits.

A matrix is a table of its panels, int64 [panels, 2] (where the panel begins, counted from the table's first byte, and
the code of its format), and the panels. So parts of a matrix may have different formats.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from outrider.kernels.numba.code_cache import compiling, native
from outrider.kernels.numba.packed_amx import FEWEST_ROWS, PANELS, amx_panels
from outrider.kernels.numba.packed_dots import Vectors, vectors
from outrider.kernels.numba.packed_formats import BFLOAT16, FORMATS, UNIT, Format
from outrider.kernels.numba.packed_inputs import given_size, strict, units_of
from outrider.kernels.numba.tiles import (
    AHEAD,
    FLOAT,
    PANEL,
    WORD,
    fetch,
    loop,
    number,
    pointer,
    pointer_to,
)
from outrider.kernels.numba.tiles import tile as bfloat16_tile
from outrider.runtime import cpu

_SHORT = ir.IntType(16)

MOST_ROWS = 4
"""Rows of a tile."""


class _Tile:
    """Emits the code of one tile: some rows of inputs times one panel of one format."""

    def __init__(self, v: Vectors, builder: Any, form: Format, lines: list[Any], units: Any) -> None:
        self.v, self.builder, self.form, self.lines = v, builder, form, lines
        self.rows = range(len(lines))
        self.units = units

    def _of_row(self, row: int, start: int, unit: Any, kind: Any) -> Any:
        """One of a row's numbers for every unit, which begin behind ``start`` bytes of each."""
        builder, size = self.builder, 4 if kind is FLOAT else 2
        at = builder.add(self.lines[row], builder.mul(self.units, number(start)))
        return builder.load(pointer(builder, at, builder.mul(unit, number(size)), kind), align=1)

    def _sums(self, unit: Any) -> list[list[Any]]:
        """By row, sums of a unit's groups of inputs: two of 16, or one of 32."""
        builder, found = self.builder, []
        for row in self.rows:
            total = builder.sext(self._of_row(row, UNIT, unit, _SHORT), WORD)
            if self.form.groups == 1:
                found.append([total])
                continue
            half = builder.sext(self._of_row(row, UNIT + 2, unit, _SHORT), WORD)
            found.append([half, builder.sub(total, half)])
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
            scale = self._of_row(row, UNIT + 8, unit, FLOAT)
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
def _alike(table: Any, first: int, end: int) -> int:
    """How many panels from the first on have one format, up to as many as AMX takes at a time."""
    last = first + 1
    while last < min(first + PANELS, end) and table[last, 1] == table[first, 1]:
        last += 1
    return last - first


@strict
def packed_product(
    matrix: int, first: int, panels: int, rows: int, inputs: int, x: int, given: int, out: int, stride: int,
    registers: int,
) -> None:  # fmt: skip
    """Rows times panels of a matrix -> out [rows, 16 * panels], whose rows lie ``stride`` numbers apart.

    By their addresses: x [rows, inputs], what ``shorten`` made of it, and what the thread's registers of AMX are set
    to, as ``amx_products.Registers`` has it.
    """
    units, size, end = units_of(inputs), given_size(inputs), first + panels
    table = carray(pointer_to(matrix), (end, 2), np.int64)
    panel = first
    while panel < end:
        here, code = matrix + table[panel, 0], table[panel, 1]
        to, row = out + 4 * PANEL * (panel - first), 0
        if code < BFLOAT16 and rows >= FEWEST_ROWS[code]:
            alike = _alike(table, panel, end)
            amx_panels(code, here, alike, rows, given, size, units, to, 4 * stride, registers)
            panel += alike
            continue
        while row < rows and code == BFLOAT16:
            _bfloat16(here, x + 4 * inputs * row, inputs, to + 4 * stride * row, stride, inputs)
            row += 1
        while row < rows:  # in parts as equal as possible
            left = (rows - row + MOST_ROWS - 1) // MOST_ROWS
            count = (rows - row + left - 1) // left
            _multiply(code, count, here, given + size * row, size, to + 4 * stride * row, stride, units)
            row += count
        panel += 1


_ARGUMENTS = 10


@cache
def address() -> int:
    """Where ``packed_product`` is in memory, once it is compiled. Called by its address it is compiled once, and not
    anew into every function around it."""
    with compiling("packed_product", "products of packed weights", seconds=10):
        return native(packed_product.py_func, types.void(*[types.int64] * _ARGUMENTS))


@intrinsic
def call_product(
    typing: Any, where: Any, matrix: Any, first: Any, panels: Any, rows: Any, inputs: Any, x: Any, given: Any, out: Any,
    stride: Any, registers: Any,
) -> Any:  # fmt: skip
    """``packed_product`` by its address."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * _ARGUMENTS)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * (1 + _ARGUMENTS)), generate
