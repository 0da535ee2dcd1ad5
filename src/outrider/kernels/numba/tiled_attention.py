"""Attention of a block of queries over a KV cache, tile by tile of keys, compiled by numba.

A key is read once for all queries of a block and all query heads that share it. Keys are cut into tiles of ``TILE``
positions, counted from the start of the text. In a tile a query gets the highest of its scores, the sum of its weights
and the weighted sum of values; then the tiles are added up in their order. So the order of every sum depends on the
query's own position alone: **bits depend neither on the width of a run, nor on which tiles other threads take.**
Where the tokens of a run are a tree, the keys behind its root are gathered for each token in the order of its path.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.kernels.numba import amx_products
from outrider.kernels.numba.amx_attention import Panels, parted_product, single_product
from outrider.kernels.numba.amx_products import CHUNK, SHAPES, configure, release, split_line
from outrider.kernels.numba.attention_room import LINE, QUERY_PARTS, TILE, Cut, Room
from outrider.kernels.numba.float16_products import narrow
from outrider.kernels.numba.float_tiles import multiply_panels
from outrider.kernels.numba.kv_panels import (
    GRANULE,
    HALF_ROWS,
    QUERY_LIMIT,
    half_product,
    multiplied_by_amx,
    multiplied_in_half,
)
from outrider.kernels.numba.tiles import PANEL, compiled, count_up
from outrider.kernels.numba.tree_keys import copy_values, gather_keys, gather_values
from outrider.kernels.numba.vector_math import cap, weigh


@compiled
def _multiply_keys(
    stored: Any, keys: int, lines: int, row: int, count: int, room: Room, place: int, end: int
) -> None:  # fmt: skip
    """Queries row..count times the blocks of keys of place..end of a tile -> scores; ``keys``: address of the first."""
    padded, bits = room.queries.shape[1], room.bits.shape[1] // QUERY_PARTS
    if multiplied_by_amx(stored):
        parted_product(
            count - row, (end - place) // PANEL, Panels(keys, 2 * PANEL * lines, 2 * PANEL * CHUNK, 4 * PANEL),
            room.bits[row].ctypes.data, 2 * QUERY_PARTS * bits, 2 * bits, bits // CHUNK,
            room.scores[row].ctypes.data + 4 * place, 4 * LINE,
        )  # fmt: skip
        return
    if not multiplied_in_half(stored):
        multiply_panels(
            stored, keys, stored.itemsize * PANEL, stored.itemsize * lines * PANEL, (end - place) // PANEL,
            room.queries[row].ctypes.data, 4 * padded, count - row, room.scores[row].ctypes.data + 4 * place, 4 * LINE,
            padded,
        )  # fmt: skip
        return
    for each in range(place, end, PANEL):
        block, to = keys + stored.itemsize * lines * (each - place), room.scores.ctypes.data + 4 * each
        for first in range(row, count, HALF_ROWS):
            half_product(
                min(HALF_ROWS, count - first), block, 2 * PANEL, room.bits[first].ctypes.data, 2 * bits,
                room.factors[first:].ctypes.data, block + 2 * PANEL * (lines - 1), to + 4 * LINE * first, 4 * LINE,
                bits,
            )  # fmt: skip


@compiled
def _multiply_values(
    stored: Any, values: int, apart: int, columns: int, low: int, high: int, row: int, count: int, room: Room, to: int
) -> None:  # fmt: skip
    """Weights of the keys low..high of a tile, in lines row..count, times columns of its values -> ``to``.

    ``apart``: bytes from one value to the next.
    """
    stride = 4 * (room.queries.shape[1] + PANEL)
    if multiplied_by_amx(stored):
        single_product(
            count - row, columns // PANEL, Panels(values + apart * low, 4 * PANEL, CHUNK * apart, 2 * apart),
            room.halves[row].ctypes.data + 2 * low, 2 * TILE, 0, (high - low) // CHUNK, to + stride * row, stride,
        )  # fmt: skip
        return
    if not multiplied_in_half(stored):
        multiply_panels(
            stored, values + apart * low, apart, stored.itemsize * PANEL, columns // PANEL,
            room.scores[row].ctypes.data + 4 * low, 4 * LINE, count - row, to + stride * row, stride, high - low,
        )  # fmt: skip
        return
    for column in range(0, columns, PANEL):
        first, found = values + stored.itemsize * column + apart * low, to + 4 * column
        for line in range(row, count, HALF_ROWS):
            half_product(
                min(HALF_ROWS, count - line), first, apart, room.halves[line].ctypes.data + 2 * low, 2 * TILE,
                room.unscaled.ctypes.data, room.ones.ctypes.data, found + stride * line, stride, high - low,
            )  # fmt: skip


@compiled
def _weigh_rows(
    stored: Any, row: int, count: int, start: int, low: int, high: int, room: Room, parts: Any, most: float
) -> None:
    """Scores of lines row..count -> weights; ``most``: what scores are bounded by, or 0."""
    in_16_bits, padded = multiplied_in_half(stored) or multiplied_by_amx(stored), room.queries.shape[1]
    for line in range(row, count):
        scores = room.scores[line].ctypes.data
        if most > 0:
            for place in range(low, high, PANEL):
                cap(scores + 4 * place, np.float32(most))
        first, end = max(room.first[line] - start, 0), min(room.end[line] - start, TILE)
        halves = room.halves[line].ctypes.data if in_16_bits else 0
        weigh(scores, first, end, low, high, halves, parts.ctypes.data + 4 * (parts.shape[1] * line + padded))


@compiled
def _attend_tile(
    stored: Any, keys: int, lines: int, values: int, tile: int, count: int, room: Room, parts: Any, most: float,
    paths: Any,
) -> None:  # fmt: skip
    """``count`` queries over the keys of one tile -> parts [count, padded + PANEL]: sums of values and ``weigh``'s.

    ``most``: what scores are bounded by, or 0.
    """
    padded, start, size = room.queries.shape[1], TILE * tile, stored.itemsize
    low = max(room.first[:count].min() - start, 0) // GRANULE * GRANULE  # keys that any of them sees
    high = (min(room.end[:count].max() - start, TILE) + GRANULE - 1) // GRANULE * GRANULE
    common = high  # keys before it are the same ones for all queries
    if paths is not None:
        common = min(high, max(low, (paths.root + 1 - start) // PANEL * PANEL))
    first_key, first_value = keys + size * lines * (start + low), values + size * padded * start
    if common == high:
        # By AMX sixteen rows at a time, whose scores and weights stay in the first cache.
        step = amx_products.ROWS if multiplied_by_amx(stored) else count
        for row in range(0, count, step):
            end = min(row + step, count)
            _multiply_keys(stored, first_key, lines, row, end, room, low, high)
            _weigh_rows(stored, row, end, start, low, high, room, parts, most)
            _multiply_values(stored, first_value, size * padded, padded, low, high, row, end, room, parts.ctypes.data)
    elif paths is not None:
        _attend_paths(stored, keys, lines, values, tile, count, room, parts, most, paths, low, common, high)


@compiled
def _attend_paths(
    stored: Any, keys: int, lines: int, values: int, tile: int, count: int, room: Room, parts: Any, most: float,
    paths: Any, low: int, common: int, high: int,
) -> None:  # fmt: skip
    """The same where the keys common..high are gathered for every token, as its path has them."""
    padded, start, size = room.queries.shape[1], TILE * tile, stored.itemsize
    group, block, gathered = count // len(paths.depths), room.path_keys.ctypes.data, room.path_values.ctypes.data
    if low < common:
        _multiply_keys(stored, keys + size * lines * (start + low), lines, 0, count, room, low, common)
    for token in range(len(paths.depths)):
        path, depth, rows = paths.places[token], paths.depths[token], (group * token, group * (token + 1))
        for place in range(common, high, PANEL):
            gather_keys(stored, keys, lines, start + place, paths.root, path, depth, block)
            _multiply_keys(stored, block, lines, rows[0], rows[1], room, place, place + PANEL)
    _weigh_rows(stored, 0, count, start, low, high, room, parts, most)
    for column in range(0, padded, PANEL):
        to = parts.ctypes.data + 4 * column
        copy_values(stored, values, padded, column, start, low, common, gathered)
        for token in range(len(paths.depths)):
            path, depth, rows = paths.places[token], paths.depths[token], (group * token, group * (token + 1))
            gather_values(stored, values, padded, column, start, common, high, paths.root, path, depth, gathered)
            _multiply_values(stored, gathered, size * PANEL, PANEL, low, high, rows[0], rows[1], room, to)


@compiled
def add_up(parts: Any, query: int, begin: int, end: int, room: Room, out: Any) -> None:
    """The tiles of a query that sees the keys begin..end, in their order -> out [depth]."""
    first, last = begin // TILE, (end - 1) // TILE
    padded, weights, total = parts.shape[2] - PANEL, room.weights, np.float32(0)
    for tile in range(first, last + 1):
        weights[tile] = parts[tile, query, padded]
    low, high = first // PANEL * PANEL, (last // PANEL + 1) * PANEL
    weigh(weights.ctypes.data, first, last + 1, low, high, 0, room.sums.ctypes.data)
    out[:] = 0
    for tile in range(first, last + 1):
        weight = weights[tile]
        total += weight * parts[tile, query, padded + 1]
        for j in range(out.shape[0]):
            out[j] += weight * parts[tile, query, j]
    share = np.float32(1) / total
    for j in range(out.shape[0]):
        out[j] *= share


@compiled
def attend_block(
    stored: Any,
    keys: int,
    lines: int,
    values: int,
    cut: Cut,
    tile: int,
    queries: int,
    room: Room,
    parts: Any,
    finished: int,
    most: float = 0.0,
    paths: Any = None,
) -> bool:
    """All tiles of a block, or one where items are tiles -> whether every tile of it is done now.

    Queries and what they see are in ``room``. ``finished``: address of the count of the block's tiles that are done.
    ``most``: what scores are bounded by, smoothly; 0: by nothing. ``paths``: where the tokens of the block are a tree;
    None: they never are.
    """  # fmt: skip
    first, last = room.first[:queries].min() // TILE, (room.end[:queries].max() - 1) // TILE
    if cut.by_tile:
        first, last = max(first, tile), min(last, tile)
    if first <= last and multiplied_in_half(stored):
        narrow(room.queries[:queries], QUERY_LIMIT, 0, room.bits, room.factors)
    if first <= last and multiplied_by_amx(stored):
        configure(SHAPES[amx_products.ROWS].ctypes.data)
        padded, size = room.queries.shape[1], room.bits.shape[1] // QUERY_PARTS
        for row in range(queries):
            split_line(room.queries[row].ctypes.data, padded, room.bits[row].ctypes.data, 2 * size)
    for each in range(first, last + 1):  # the one place that calls it: compiled twice, bits could differ
        _attend_tile(stored, keys, lines, values, each, queries, room, parts[each], most, paths)
    if multiplied_by_amx(stored):
        release()
    return not cut.by_tile or count_up(finished, 1) + 1 == cut.tiles
