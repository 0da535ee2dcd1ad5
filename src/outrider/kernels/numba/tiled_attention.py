"""Attention of a block of queries over a KV cache, tile by tile of keys, compiled by numba.

A key is read once for all queries of a block and all query heads that share it. Keys are cut into tiles of ``TILE``
positions, counted from the start of the text. In a tile a query gets the highest of its scores, the sum of its weights
and the weighted sum of values; then the tiles are added up in their order. So the order of every sum depends on the
query's own position alone: **bits depend neither on the width of a run, nor on which tiles other threads take.**
Where the tokens of a run are a tree, the keys behind its root are gathered for each token in the order of its path.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from outrider.kernels.numba import amx_products
from outrider.kernels.numba.amx_attention import pair_lines, paired_product
from outrider.kernels.numba.amx_products import CHUNK, SHAPES, configure, release, split_line
from outrider.kernels.numba.arrays import aligned, aligned_lines
from outrider.kernels.numba.float16_products import AVAILABLE as IN_HALF
from outrider.kernels.numba.float16_products import narrow
from outrider.kernels.numba.kv_panels import (
    FLOAT_ROWS,
    GRANULE,
    HALF_ROWS,
    QUERY_LIMIT,
    float_product,
    half_product,
    multiplied_by_amx,
    multiplied_in_half,
    widen,
)
from outrider.kernels.numba.layer_math import exp
from outrider.kernels.numba.products import chained
from outrider.kernels.numba.tiles import PANEL, compiled, count_up
from outrider.kernels.numba.tree_keys import copy_values, gather_keys, gather_values
from outrider.kernels.numba.vector_math import HALF_WEIGHT, cap, weigh

TILE = 256
"""Positions of a tile: a multiple of GRANULE. Bits depend on it."""

LINE = TILE + PANEL
"""Scores of a tile, and room: lines a power of two apart would share few places of a cache."""

BLOCK = 48
"""Queries of a block, about, over all heads that share keys."""

_PARTS = amx_products.PARTS if amx_products.AVAILABLE else 1
"""Numbers of 16 bits for each query and each weight."""

assert GRANULE % CHUNK == 0 and not (IN_HALF and amx_products.AVAILABLE)


class Cut(NamedTuple):
    """How the attention of a run is cut into items of work: a block of one row and one key/value head each.

    Where there are few blocks, an item is one tile of a block, and the last to finish adds up the tiles.
    """

    tokens: int  # of a block
    queries: int  # of a block that there is room for
    blocks: int  # of a row
    tiles: int  # of the longest row
    by_tile: bool


class Room(NamedTuple):
    """A thread's scratch buffers."""

    queries: np.ndarray[Any, Any]  # [R, padded]
    bits: np.ndarray[Any, Any]  # [R, _PARTS * whole chains]: queries in 16 bits
    factors: np.ndarray[Any, Any]  # [R]: what products of queries in float16 are multiplied with
    first: np.ndarray[Any, Any]  # [R]: the first key of each, and where they end
    end: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]  # [R, LINE]
    halves: np.ndarray[Any, Any]  # [R, _PARTS * TILE]: weights in 16 bits
    panel: np.ndarray[Any, Any]  # [.., PANEL]: keys or values in float32; by AMX those of a tile, in bfloat16
    unscaled: np.ndarray[Any, Any]  # [HALF_ROWS]: what to multiply products of ``halves`` with
    ones: np.ndarray[Any, Any]  # [PANEL], in float16
    path_keys: np.ndarray[Any, Any]  # bytes of a block of keys and of sixteen columns of a tile's values, of one path
    path_values: np.ndarray[Any, Any]
    parts: np.ndarray[Any, Any]  # [tiles, R, padded + PANEL], where an item is a whole block


class Paths(NamedTuple):
    """The paths of the tokens of a block, where they are a tree. A root by itself: tokens one behind the other."""

    root: int  # its position; no key behind it is read by its place
    places: np.ndarray[Any, Any]  # [T, D]: where the tokens on each path lie, by depth
    depths: np.ndarray[Any, Any]  # [T]


NOWHERE = 1 << 40
"""A root that no text reaches."""


def cut(rows: int, width: int, shared: int, group: int, longest: int, threads: int) -> Cut:
    """For ``rows`` rows of ``width`` tokens that see up to ``longest`` keys, with ``group`` query heads to each key."""
    tokens = min(width, max(1, BLOCK // group))
    blocks, tiles = -(-width // tokens), -(-longest // TILE)
    by_tile = tiles > 1 and rows * shared * blocks < 4 * threads
    return Cut(tokens, query_room(tokens * group), blocks, tiles, by_tile)


def query_room(queries: int) -> int:
    """Rows of scratch buffers for so many queries. AMX writes sixteen rows at a time, from any row on."""
    return (queries // amx_products.ROWS + 2) * amx_products.ROWS if amx_products.AVAILABLE else queries


@compiled
def room_for(cut: Cut, depth: int) -> Room:
    queries, padded = cut.queries, (depth + PANEL - 1) // PANEL * PANEL
    bits = aligned_lines(queries, _PARTS * chained(depth), np.uint16)
    lines = max(TILE, padded, TILE * padded // CHUNK + PANEL if _PARTS > 1 else 0)
    panel = aligned_lines(lines, PANEL, np.float32)
    bits[:], panel[:] = 0, 0  # AMX multiplies whole chunks
    tiles = 0 if cut.by_tile else cut.tiles
    return Room(
        np.zeros((queries, padded), np.float32), bits,
        np.empty(queries, np.float32), np.empty(queries, np.int64), np.empty(queries, np.int64),
        aligned_lines(queries, LINE, np.float32), aligned_lines(queries, _PARTS * TILE, np.uint16),
        panel, np.full(HALF_ROWS, np.float32(1 / HALF_WEIGHT), np.float32), np.full(PANEL, 0x3C00, np.uint16),
        np.empty(4 * PANEL * (chained(depth) + 1), np.uint8), np.empty(4 * PANEL * TILE, np.uint8),
        aligned(tiles * queries * (padded + PANEL), np.float32).reshape((tiles, queries, padded + PANEL)),
    )  # fmt: skip


@compiled
def _multiply_keys(
    stored: Any, keys: int, lines: int, row: int, count: int, room: Room, place: int, end: int
) -> None:  # fmt: skip
    """Queries row..count times the blocks of keys of place..end of a tile -> scores; ``keys``: address of the first."""
    padded, panel, bits = room.queries.shape[1], room.panel.ctypes.data, room.bits.shape[1] // _PARTS
    if multiplied_by_amx(stored):  # all blocks are brought into its order before: it waits for what was just written
        pair_lines(keys, 2 * PANEL, padded // PANEL * (end - place), panel)
    for each in range(place, end, PANEL):
        block, to = keys + stored.itemsize * lines * (each - place), room.scores.ctypes.data + 4 * each
        if multiplied_by_amx(stored):
            paired_product(
                count - row, panel + 2 * padded * (each - place), room.bits[row].ctypes.data, 2 * _PARTS * bits,
                2 * bits, bits // CHUNK, to + 4 * LINE * row, 4 * LINE,
            )  # fmt: skip
        elif multiplied_in_half(stored):
            for first in range(row, count, HALF_ROWS):
                half_product(
                    min(HALF_ROWS, count - first), block, 2 * PANEL, room.bits[first].ctypes.data, 2 * bits,
                    room.factors[first:].ctypes.data, block + 2 * PANEL * (lines - 1), to + 4 * LINE * first, 4 * LINE,
                    bits,
                )  # fmt: skip
        else:
            widen(stored, block, stored.itemsize * PANEL, padded, panel)
            for first in range(row, count, FLOAT_ROWS):
                rows, x = min(FLOAT_ROWS, count - first), room.queries[first].ctypes.data
                float_product(rows, panel, x, 4 * padded, to + 4 * LINE * first, 4 * LINE, padded)


@compiled
def _multiply_values(
    stored: Any, values: int, apart: int, columns: int, low: int, high: int, row: int, count: int, room: Room, to: int
) -> None:  # fmt: skip
    """Weights of the keys low..high of a tile, in lines row..count, times columns of its values -> ``to``.

    ``apart``: bytes from one value to the next.
    """
    stride, panel = 4 * (room.queries.shape[1] + PANEL), room.panel.ctypes.data
    if multiplied_by_amx(stored):
        for column in range(0, columns, PANEL):
            pair_lines(values + 2 * column + apart * low, apart, high - low, panel + 2 * TILE * column)
    for column in range(0, columns, PANEL):
        first, found = values + stored.itemsize * column + apart * low, to + 4 * column
        if multiplied_by_amx(stored):
            paired_product(
                count - row, panel + 2 * TILE * column, room.halves[row].ctypes.data + 2 * low, 2 * _PARTS * TILE,
                2 * TILE, (high - low) // CHUNK, found + stride * row, stride,
            )  # fmt: skip
        elif multiplied_in_half(stored):
            for line in range(row, count, HALF_ROWS):
                half_product(
                    min(HALF_ROWS, count - line), first, apart, room.halves[line].ctypes.data + 2 * low, 2 * TILE,
                    room.unscaled.ctypes.data, room.ones.ctypes.data, found + stride * line, stride, high - low,
                )  # fmt: skip
        else:
            widen(stored, first, apart, high - low, panel)
            for line in range(row, count, FLOAT_ROWS):
                rows, x = min(FLOAT_ROWS, count - line), room.scores[line].ctypes.data + 4 * low
                float_product(rows, panel, x, 4 * LINE, found + stride * line, stride, high - low)


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
    if low < common:
        _multiply_keys(stored, keys + size * lines * (start + low), lines, 0, count, room, low, common)
    if paths is not None:
        group, block = count // len(paths.depths), room.path_keys.ctypes.data
        for token in range(len(paths.depths) if common < high else 0):
            for place in range(common, high, PANEL):
                path, depth = paths.places[token], paths.depths[token]
                gather_keys(stored, keys, lines, start + place, paths.root, path, depth, block)
                rows = group * token, group * (token + 1)
                _multiply_keys(stored, block, lines, rows[0], rows[1], room, place, place + PANEL)
    if most > 0:
        for row in range(count):
            for place in range(low, high, PANEL):
                cap(room.scores[row].ctypes.data + 4 * place, np.float32(most))
    in_16_bits = multiplied_in_half(stored) or multiplied_by_amx(stored)
    apart = 2 * TILE if multiplied_by_amx(stored) else 0
    for row in range(count):
        first, end = max(room.first[row] - start, 0), min(room.end[row] - start, TILE)
        halves = room.halves.ctypes.data + 2 * _PARTS * TILE * row if in_16_bits else 0
        sums = parts.ctypes.data + 4 * (parts.shape[1] * row + padded)
        weigh(room.scores.ctypes.data + 4 * LINE * row, first, end, low, high, halves, apart, sums)
    if common == high:
        here = values + size * padded * start
        _multiply_values(stored, here, size * padded, padded, low, high, 0, count, room, parts.ctypes.data)
    elif paths is not None:
        for column in range(0, padded, PANEL):
            to, first = parts.ctypes.data + 4 * column, values + size * column
            gathered = room.path_values.ctypes.data
            copy_values(stored, first + size * padded * start, padded, low, common, gathered)
            for token in range(len(paths.depths)):
                path, depth = paths.places[token], paths.depths[token]
                gather_values(stored, first, padded, start, common, high, paths.root, path, depth, gathered)
                rows = group * token, group * (token + 1)
                _multiply_values(stored, gathered, size * PANEL, PANEL, low, high, rows[0], rows[1], room, to)


@compiled
def add_up(parts: Any, query: int, begin: int, end: int, out: Any) -> None:
    """The tiles of a query that sees the keys begin..end, in their order -> out [depth]."""
    first, last = begin // TILE, (end - 1) // TILE
    padded = parts.shape[2] - PANEL
    highest, total = np.float32(-np.inf), np.float32(0)
    for tile in range(first, last + 1):
        highest = max(highest, parts[tile, query, padded])
    out[:] = 0
    for tile in range(first, last + 1):
        weight = exp(parts[tile, query, padded] - highest)
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
        padded, size = room.queries.shape[1], room.bits.shape[1] // _PARTS
        for row in range(queries):
            split_line(room.queries[row].ctypes.data, padded, room.bits[row].ctypes.data, 2 * size)
    for each in range(first, last + 1):  # the one place that calls it: compiled twice, bits could differ
        _attend_tile(stored, keys, lines, values, each, queries, room, parts[each], most, paths)
    if multiplied_by_amx(stored):
        release()
    return not cut.by_tile or count_up(finished, 1) + 1 == cut.tiles
