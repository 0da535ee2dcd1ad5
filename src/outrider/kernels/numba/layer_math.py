"""The arithmetic of a layer for a few rows, compiled by numba. Batch-invariant: a row's bits depend on no other."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from numba import types

from outrider.kernels.numba.attention import blend, dot, four_dots, wide_blend
from outrider.kernels.numba.tiles import (
    MOST_ROWS,
    PANEL,
    by_count,
    compiled,
    count_of,
    count_up,
    float_of_bits,
    tile,
    together,
)
from outrider.kernels.numba.vector_math import turn

STRIDE = 128
"""Bytes of counters for a piece of work: items taken, and on a line of memory of its own, items finished."""

_PATIENCE = 4096
"""Looks at a counter before a waiting thread offers its core to others."""

_yield = types.ExternalFunction("SwitchToThread" if platform.system() == "Windows" else "sched_yield", types.int32())


@compiled
def take(counters: int, piece: int) -> Any:
    """The next item of a piece of work."""
    return count_up(counters + STRIDE * piece, 1)


@compiled
def finish(counters: int, piece: int, done: int, items: int) -> None:
    """Of a piece of work's items this thread has done so many: wait until all are."""
    if done:
        count_up(counters + STRIDE * piece + STRIDE // 2, done)
    looks = 0
    while count_of(counters + STRIDE * piece + STRIDE // 2) < items:
        looks += 1
        if looks > _PATIENCE:
            _yield()


_TOGETHER = (0, *(together(rows) for rows in range(1, MOST_ROWS + 1)))


def _product(size: int) -> Any:
    """A function that multiplies with weights of so many bytes."""

    def tiles(panels: int) -> Any:
        most = max(rows for rows in range(1, MOST_ROWS + 1) if panels <= _TOGETHER[rows])
        return by_count([tile(rows, panels, size) for rows in range(1, most + 1)])

    by_one = tiles(1)
    by_two, by_four = (tiles(panels) if panels <= max(_TOGETHER) else by_one for panels in (2, 4))

    @compiled
    def product(weights: int, x: int, rows: int, inputs: int, out: int, stride: int, panels: int) -> None:
        if rows == 0:
            return
        parts = (rows + MOST_ROWS - 1) // MOST_ROWS
        most = (rows + parts - 1) // parts
        panel = 0
        while panel < panels:
            wide = _TOGETHER[most]
            while panel + wide > panels:
                wide //= 2
            here = weights + size * PANEL * inputs * panel
            row = 0
            while row < rows:  # in parts as equal as possible
                left = (rows - row + MOST_ROWS - 1) // MOST_ROWS
                count = (rows - row + left - 1) // left
                given, to = x + 4 * inputs * row, out + 4 * (stride * row + PANEL * panel)
                if wide == 1:
                    by_one(count, here, given, inputs, to, stride, inputs)
                elif wide == 2:
                    by_two(count, here, given, inputs, to, stride, inputs)
                else:
                    by_four(count, here, given, inputs, to, stride, inputs)
                row += count
            panel += wide

    return product


product, float32_product = _product(2), _product(4)
"""x [rows, inputs] times panels of bfloat16 or float32 -> out [rows, 16 * panels], whose rows lie ``stride`` numbers
apart: (weights, x, rows, inputs, out, stride, panels), the first two and ``out`` addresses."""


@compiled
def norm(x: Any, scale: Any, epsilon: float, out: Any) -> None:
    for row in range(x.shape[0]):
        squares = np.float32(0)
        for column in range(x.shape[1]):
            squares += x[row, column] * x[row, column]
        factor = np.float32(1) / np.sqrt(squares / np.float32(x.shape[1]) + np.float32(epsilon))
        for column in range(x.shape[1]):
            out[row, column] = x[row, column] * factor * scale[column]


@compiled
def norm_line(line: Any, scale: Any, epsilon: float) -> None:
    """The RMS norm of the first numbers of a line, as many as have a scale, in its place."""
    count = len(scale)
    squares = np.float32(0)
    for j in range(count):
        squares += line[j] * line[j]
    factor = np.float32(1) / np.sqrt(squares / np.float32(count) + np.float32(epsilon))
    for j in range(count):
        line[j] = line[j] * factor * scale[j]


@compiled
def exp(x: Any) -> Any:
    """e^x for x <= 0 and not only there, to about a unit in the last place; never zero, never infinite."""
    x = min(max(x, np.float32(-87)), np.float32(88))
    whole = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    rest = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)  # ln 2 in two parts
    power = np.float32(1 / 5040)
    power = power * rest + np.float32(1 / 720)
    power = power * rest + np.float32(1 / 120)
    power = power * rest + np.float32(1 / 24)
    power = power * rest + np.float32(1 / 6)
    power = power * rest + np.float32(0.5)
    power = power * rest + np.float32(1)
    power = power * rest + np.float32(1)
    return power * float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))


@compiled
def rotate(line: Any, cos: Any, sin: Any, to: Any) -> None:
    """Rotary positions on the numbers that have a cosine; those behind them stay as they are."""
    half = cos.shape[0]
    whole = half // PANEL * PANEL
    for j in range(0, whole, PANEL):
        turn(
            line.ctypes.data + 4 * j, 4 * half, cos.ctypes.data + 4 * j, sin.ctypes.data + 4 * j, to.ctypes.data + 4 * j
        )
    for j in range(whole, half):
        first, second = line[j], line[j + half]
        to[j] = first * cos[j] - second * sin[j]
        to[j + half] = second * cos[j] + first * sin[j]
    for j in range(2 * half, len(to)):
        to[j] = line[j]


@compiled
def soften(scores: Any, scale: float) -> None:
    """Scores, times a scale -> weights that sum to one."""
    highest = np.float32(-np.inf)
    for place in range(len(scores)):
        highest = max(highest, scores[place])
    for place in range(len(scores)):
        scores[place] = exp((scores[place] - highest) * np.float32(scale))
    total = np.float32(0)
    for place in range(len(scores)):
        total += scores[place]
    share = np.float32(1) / total
    for place in range(len(scores)):
        scores[place] *= share


@compiled
def score_keys(query: Any, keys: Any, scores: Any) -> None:
    """A query times keys [P, depth] -> scores [P]."""
    depth, seen = query.shape[0], keys.shape[0]
    if depth % 16 == 0:
        place = 0
        while place < seen:
            at, to = keys.ctypes.data + 4 * depth * place, scores.ctypes.data + 4 * place
            if place + 4 <= seen:
                four_dots(query.ctypes.data, at, depth, to)
                place += 4
            else:
                dot(query.ctypes.data, at, depth, to)
                place += 1
    else:
        for place in range(seen):
            scores[place] = np.float32(0)
            for j in range(depth):
                scores[place] += query[j] * keys[place, j]


@compiled
def blend_values(scores: Any, values: Any, out: Any) -> None:
    """Values [P, depth], weighted by scores [P] -> out [depth]."""
    seen, depth = values.shape
    if depth % 16:
        out[:] = 0
        for place in range(seen):
            for j in range(depth):
                out[j] += scores[place] * values[place, j]
        return
    block = 0
    while block < depth:
        at, to = values.ctypes.data + 4 * block, out.ctypes.data + 4 * block
        if block + 64 <= depth:
            wide_blend(scores.ctypes.data, at, depth, seen, to)
            block += 64
        else:
            blend(scores.ctypes.data, at, depth, seen, to)
            block += 16


@compiled
def attend(query: Any, keys: Any, values: Any, scale: float, scores: Any, out: Any) -> None:
    """One query over the keys [P, depth] and values it may see."""
    score_keys(query, keys, scores)
    soften(scores[: len(keys)], scale)
    blend_values(scores, values, out)
