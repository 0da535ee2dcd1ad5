"""Attention over a KV cache in tiles: what numpy computes, and the same bits however the work is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from outrider.kernels.numba import attention_room, kv_panels, kv_writes, tiled_attention
from outrider.kernels.numba.attention_room import TILE, Cut
from outrider.kernels.numba.tiles import PANEL, compiled
from outrider.runtime import cpu

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

FORMATS = [
    "float32",
    "bfloat16",
    pytest.param("float16", marks=pytest.mark.skipif(not kv_panels.HAS_FLOAT16, reason="this CPU has no float16")),
]
TOLERANCE = {
    "float32": 2e-5,
    "bfloat16": 1e-3 if kv_panels.BY_AMX else 2e-5,
    "float16": 2e-2 if kv_panels.in_half("float16") else 2e-5,
}
"""Against the keys and values as they are stored. AMX rounds weights to bfloat16: one may fall on the other side."""

LENGTH = 2 * TILE + 70
HEADS = {16: 1, 24: 8, 64: 3, 80: 4, 128: 1}
"""Query heads that share keys, by the size of a head."""

Array = np.ndarray[Any, Any]


@compiled
def _fill(stored: Any, keys: int, lines: int, values: int, padded: int, k: Any, v: Any) -> None:
    for place in range(len(k)):
        kv_writes.write_key(stored, keys, lines, place, k[place], k.shape[1])
        kv_writes.write_value(stored, values, padded, place, v[place], v.shape[1])


@compiled
def _attend(
    stored: Any, keys: int, lines: int, values: int, cut: Cut, group: int, q: Any, first: Any, end: Any, shared: Any,
    finished: Any, order: Any, out: Any,
) -> None:  # fmt: skip
    room = attention_room.room_for(cut, q.shape[1])
    parts = shared if cut.by_tile else room.parts
    for tile in order:
        for row in range(len(q)):
            room.first[row], room.end[row] = first[row], end[row]
            room.queries[row, : q.shape[1]] = q[row]
        if tiled_attention.attend_block(
            stored, keys, lines, values, cut, tile, len(q), room, parts, finished.ctypes.data
        ):
            for row in range(len(q)):
                tiled_attention.add_up(parts, row, first[row], end[row], room, out[row])


class Cache:
    """Keys and values of one head in a format, with something else behind them."""

    def __init__(self, dtype: str, depth: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.depth, self.padded = depth, -(-depth // PANEL) * PANEL
        self.k, self.v = (rng.standard_normal((LENGTH, depth)).astype(np.float32) for _ in range(2))
        self.k[:, 0] *= 4  # beyond 1, as keys of real models are
        room = -(-LENGTH // kv_panels.GRANULE) * kv_panels.GRANULE
        self.stored = np.empty(0, kv_panels.STORED[dtype])
        self.lines = kv_panels.key_lines(dtype, depth)
        self.keys, self.values = (np.zeros(room * size, self.stored.dtype) for size in (self.lines, self.padded))
        self.write(self.k, self.v)

        self.dtype = dtype

    def write(self, k: Array, v: Array) -> None:
        _fill(self.stored, self.keys.ctypes.data, self.lines, self.values.ctypes.data, self.padded, k, v)

    def attend(
        self, q: Array, positions: Array, group: int, window: int = 2**31, order: list[int] | None = None
    ) -> Array:
        """Queries [T, group, depth] at positions -> [T, group, depth]; ``order``: of the tiles as items of work."""
        tiles = -(-LENGTH // TILE)
        end = np.repeat(positions + 1, group)
        room = attention_room.query_room(len(end))
        cut = Cut(len(q), room, 1, tiles, order is not None)
        shared = np.full((tiles, room, self.padded + PANEL), np.nan, np.float32)
        out, flat = np.full((len(end), self.depth), np.nan, np.float32), q.reshape(-1, self.depth)
        _attend(
            self.stored, self.keys.ctypes.data, self.lines, self.values.ctypes.data, cut, group, flat,
            np.maximum(0, end - window), end, shared, np.zeros(1, np.int64), np.array(order or [0]), out,
        )  # fmt: skip
        return out.reshape(q.shape)


def _queries(count: int, group: int, depth: int) -> Array:
    return np.random.default_rng(1).standard_normal((count, group, depth)).astype(np.float32) * np.float32(depth**-0.5)


def _stored(x: Array, dtype: str) -> Array:
    """Rounded as the cache does."""
    if dtype == "bfloat16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32).astype(float)
    return x.astype(dtype).astype(float)


def _weights(scores: Array, first: int, rounded: bool) -> Array:
    """Of the keys from ``first`` on; ``rounded``: to bfloat16, beside the highest score of each tile."""
    tile = (first + np.arange(scores.shape[1])) // TILE
    highest = np.stack([scores[:, tile == one].max(1) for one in tile], 1)
    weights = np.exp(scores - highest)
    if rounded:
        weights = _stored(weights.astype(np.float32), "bfloat16")
    return weights * np.exp(highest - scores.max(1, keepdims=True))


def _exact(cache: Cache, q: Array, positions: Array, window: int) -> Array:
    found = np.empty(q.shape)
    keys, values = _stored(cache.k, cache.dtype), _stored(cache.v, cache.dtype)
    for token, place in enumerate(positions):
        seen = slice(max(0, place + 1 - window), place + 1)
        scores = q[token].astype(float) @ keys[seen].T
        weights = _weights(scores, seen.start, kv_panels.paired(cache.dtype))
        found[token] = weights / weights.sum(1, keepdims=True) @ values[seen]
    return found


def _same(left: Array, right: Array) -> None:
    np.testing.assert_array_equal(left.view(np.int32), right.view(np.int32))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("depth", HEADS)
@pytest.mark.parametrize("window", [2**31, 300, 7])
def test_as_numpy_has_it_and_the_same_bits_for_every_cut(dtype: str, depth: int, window: int) -> None:
    """A query's bits depend on its position alone: not on the queries beside it, nor on who does which tile when."""
    cache, group = Cache(dtype, depth), HEADS[depth]
    positions = np.array([0, 15, 16, TILE - 2, TILE - 1, TILE, TILE + 1, 2 * TILE - 1, 2 * TILE, LENGTH - 1])
    q = _queries(len(positions), group, depth)
    whole = cache.attend(q, positions, group, window)
    assert np.abs(whole - _exact(cache, q, positions, window)).max() < TOLERANCE[dtype]
    for begin, count in ((0, 1), (3, 1), (4, 3), (9, 1), (2, 7)):
        some = slice(begin, begin + count)
        _same(cache.attend(q[some], positions[some], group, window), whole[some])
    for order in ([0, 1, 2], [2, 0, 1]):
        _same(cache.attend(q, positions, group, window, order), whole)
        _same(cache.attend(q[6:7], positions[6:7], group, window, order), whole[6:7])


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_a_query_may_not_see_is_never_felt(dtype: str) -> None:
    """A guess whose keys and values are infinite or NaN must leave the tokens before it alone: plain decoding has
    never run it."""
    cache = Cache(dtype, 64)
    q, positions = _queries(2, 3, 64), np.array([TILE + 3, TILE + 9])
    before = cache.attend(q, positions, 3)[:1]
    for wrong in (np.inf, -np.inf, np.nan, 1e38):
        k, v = cache.k.copy(), cache.v.copy()
        k[TILE + 4 :], v[TILE + 4 :] = wrong, wrong
        cache.write(k, v)
        _same(cache.attend(q, positions, 3)[:1], before)


@pytest.mark.parametrize("dtype", FORMATS)
def test_large_keys_overflow_nothing(dtype: str) -> None:
    """Keys of hundreds (Qwen2's biases) times large queries: in float16 sums would be infinite without powers."""
    cache = Cache(dtype, 64)
    k = cache.k * np.float32(200)
    cache.write(k, cache.v)
    cache.k = k
    q, positions = _queries(3, 1, 64) * np.float32(50), np.array([5, TILE, LENGTH - 1])
    found = cache.attend(q, positions, 1)
    assert np.isfinite(found).all()
    scores = q.astype(float)[:, 0] @ k.T.astype(float)
    for token, place in enumerate(positions):
        top, second = np.sort(scores[token, : place + 1])[[-1, -2]]
        assert top - second > 40  # one key has all the weight
        best = scores[token, : place + 1].argmax()
        np.testing.assert_allclose(found[token, 0], cache.v[best], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("threads, width, by_tile", [(2, 1, True), (2, 64, False), (16, 9, True)])
def test_work_is_cut_finer_than_heads(threads: int, width: int, by_tile: bool) -> None:
    cut = attention_room.cut(1, width, 3, 3, 4000, threads)
    assert cut.by_tile == by_tile
    assert cut.tiles == -(-4000 // TILE)
    items = 3 * cut.blocks * (cut.tiles if by_tile else 1)
    assert items >= 3 * threads
    assert cut.tokens * cut.blocks >= width
