"""How the attention of a run is cut into items of work, and a thread's scratch buffers for it, compiled by numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from outrider.kernels.numba import amx_products
from outrider.kernels.numba.amx_products import CHUNK
from outrider.kernels.numba.arrays import aligned, aligned_lines
from outrider.kernels.numba.float16_products import AVAILABLE as IN_HALF
from outrider.kernels.numba.kv_panels import GRANULE, HALF_ROWS
from outrider.kernels.numba.products import chained
from outrider.kernels.numba.tiles import PANEL, compiled
from outrider.kernels.numba.vector_math import HALF_WEIGHT

TILE = 256
"""Positions of a tile: a multiple of GRANULE. Bits depend on it."""

LINE = TILE + PANEL
"""Scores of a tile, and room: lines a power of two apart would share few places of a cache."""

BLOCK = 48
"""Queries of a block, about, over all heads that share keys."""

QUERY_PARTS = amx_products.PARTS if amx_products.AVAILABLE else 1
"""Numbers of 16 bits for each query."""

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
    bits: np.ndarray[Any, Any]  # [R, QUERY_PARTS * whole chains]: queries in 16 bits
    factors: np.ndarray[Any, Any]  # [R]: what products of queries in float16 are multiplied with
    first: np.ndarray[Any, Any]  # [R]: the first key of each, and where they end
    end: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]  # [R, LINE]
    halves: np.ndarray[Any, Any]  # [R, TILE]: weights in 16 bits
    unscaled: np.ndarray[Any, Any]  # [HALF_ROWS]: what to multiply products of ``halves`` with
    ones: np.ndarray[Any, Any]  # [PANEL], in float16
    path_keys: np.ndarray[Any, Any]  # bytes of a block of keys and of sixteen columns of a tile's values, of one path
    path_values: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]  # [tiles]: of a query
    sums: np.ndarray[Any, Any]  # [2]: what ``weigh`` gives
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
    bits = aligned_lines(queries, QUERY_PARTS * chained(depth), np.uint16)
    bits[:] = 0  # AMX multiplies whole chunks
    tiles = 0 if cut.by_tile else cut.tiles
    return Room(
        np.zeros((queries, padded), np.float32), bits,
        np.empty(queries, np.float32), np.empty(queries, np.int64), np.empty(queries, np.int64),
        aligned_lines(queries, LINE, np.float32), aligned_lines(queries, TILE, np.uint16),
        np.full(HALF_ROWS, np.float32(1 / HALF_WEIGHT), np.float32), np.full(PANEL, 0x3C00, np.uint16),
        aligned(4 * PANEL * (chained(depth) + 1), np.uint8), aligned(4 * PANEL * TILE, np.uint8),
        np.empty(cut.tiles + PANEL, np.float32), np.empty(2, np.float32),
        aligned(tiles * queries * (padded + PANEL), np.float32).reshape((tiles, queries, padded + PANEL)),
    )  # fmt: skip
