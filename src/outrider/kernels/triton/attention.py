"""Attention over a preallocated KV cache that reads only the tokens in use, with bits that are a query's own.

Keys are cut into pieces of one size from position 0 on. A query's softmax is taken over every piece by itself, and the
pieces are merged in their order. A piece that a query may not see changes nothing, to the bit. So the result depends
on the query and the keys up to it alone: not on the number of queries of the run, the rows beside it, its place among
them, or the capacity. A few queries of each row (decoding) are spread over the GPU piece by piece and merged by a
second kernel; many (prefill) are spread by queries, and each program goes through the pieces.

In a tree of guesses a query sees the text and the tokens on its own path. In pieces behind the beginning of the tree
the keys of that path are gathered in order, for one token of the run at a time: the same sums as if it were the text.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 128  # keys per piece
_TILE = 64  # keys per product
_BLOCK_M = 64  # queries per program: constant, because sums over keys are laid out by it
_UNROLL = 8  # pieces whose results are loaded ahead of merging them
_FEW = 64
"""Queries of a row and key/value head up to which pieces are spread over the GPU."""


@triton.jit
def _query_block(
    q, positions, row, head, first, end, W,
    GROUP: tl.constexpr, HK: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The queries of a program, from the first to before the end: their place among those of the row and head, the
    values and the positions."""
    m = first + tl.arange(0, BLOCK_M)  # a token, then a query head of the group
    token, member = m // GROUP, m % GROUP
    real = m < end
    d = tl.arange(0, BLOCK_D)
    at = tl.load(positions + row * W + token, mask=real, other=0)
    place = ((row * W + token) * HK * GROUP + head * GROUP + member)[:, None] * D + d[None, :]
    inside = real[:, None] & (d < D)[None, :]
    return m, real, at, place, inside, tl.load(q + place, mask=inside, other=0.0)


@triton.jit
def _attend_piece(
    query, at, last, k, v, base, piece, scale, cap, capacity, root, path,
    D: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, BLOCK_D: tl.constexpr, EXACT: tl.constexpr,
    TREE: tl.constexpr,
):  # fmt: skip
    """Softmax over one piece -> its highest score, the sum of its weights and the weighted sum of its values.

    TREE: the keys of positions behind ``root`` lie where ``path`` says, in places counted from the root.
    """
    d = tl.arange(0, BLOCK_D)
    best = tl.full([BLOCK_M], -float("inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for first in range(0, PIECE, TILE):
        n = piece * PIECE + first + tl.arange(0, TILE)
        used = (n <= last) & (n < capacity)
        place = n
        if TREE:
            place = tl.where(n > root, root + tl.load(path + n - root, mask=used & (n > root), other=0), n)
        where = (base + place)[:, None] * D + d[None, :]
        there = used[:, None] & (d < D)[None, :]
        key = tl.load(k + where, mask=there, other=0.0)
        if EXACT:
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        else:
            score = tl.dot(query, tl.trans(key)) * scale
        if CAPPED:  # cap * tanh(score / cap)
            high = tl.exp(-2.0 * tl.abs(score / cap))
            score = tl.where(score < 0, -cap, cap) * ((1.0 - high) / (1.0 + high))
        visible = (n[None, :] <= at[:, None]) & used[None, :]
        if WINDOW > 0:
            visible = visible & (n[None, :] > at[:, None] - WINDOW)
        score = tl.where(visible, score, -float("inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        anchor = tl.where(higher == -float("inf"), 0.0, higher)
        share = tl.exp(score - anchor[:, None])
        fade = tl.exp(best - anchor)
        mass = mass * fade + tl.sum(share, 1)
        value = tl.load(v + where, mask=there, other=0.0)
        if EXACT:
            total = total * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
        else:
            total = total * fade[:, None] + tl.dot(share.to(value.dtype), value)
        best = higher
    return best, mass, total


@triton.jit
def _merge(best, mass, total, peak, part, values):
    """What was found in earlier pieces with what was found in the next one."""
    higher = tl.maximum(best, peak)
    anchor = tl.where(higher == -float("inf"), 0.0, higher)
    fade, weight = tl.exp(best - anchor), tl.exp(peak - anchor)
    return higher, mass * fade + part * weight, total * fade[:, None] + values * weight[:, None]


@triton.jit(do_not_specialize=["capacity", "pieces", "W", "levels"])
def _attend_split(
    q, k, v, positions, paths, sums, stats, scale, cap, capacity, pieces, W, levels,
    GROUP: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, BLOCK_D: tl.constexpr, EXACT: tl.constexpr,
    TREE: tl.constexpr,
):  # fmt: skip
    row_head = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    row, head = row_head // HK, row_head % HK
    root = tl.load(positions + row * W)
    if TREE and (piece + 1) * PIECE > root + 1:  # each token of the run by itself
        first = tl.program_id(2) * GROUP
        end = first + GROUP
        last = tl.load(positions + row * W + tl.program_id(2))
    else:
        first = tl.program_id(2) * BLOCK_M
        end = GROUP * W
        last = tl.load(positions + row * W + W - 1)
        if TREE:
            last = root
    if (piece * PIECE <= last) & (first < end):
        m, real, at, place, inside, query = _query_block(
            q, positions, row, head, first, end, W, GROUP, HK, D, BLOCK_M, BLOCK_D
        )
        best, mass, total = _attend_piece(
            query, at, last, k, v, row_head * capacity, piece, scale, cap, capacity, root,
            paths + first // GROUP * levels, D, WINDOW, CAPPED, BLOCK_M, TILE, PIECE, BLOCK_D, EXACT, TREE,
        )  # fmt: skip
        slot = (row_head * pieces + piece) * GROUP * W + m
        d = tl.arange(0, BLOCK_D)
        tl.store(sums + slot[:, None] * D + d[None, :], total, mask=inside)
        tl.store(stats + slot * 2, best, mask=real)
        tl.store(stats + slot * 2 + 1, mass, mask=real)


@triton.jit(do_not_specialize=["pieces", "W"])
def _merge_split(
    sums, stats, positions, out, pieces, W,
    GROUP: tl.constexpr, HK: tl.constexpr, D: tl.constexpr,
    PIECE: tl.constexpr, UNROLL: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_head = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1) + tl.arange(0, 1)
    row, head = row_head // HK, row_head % HK
    token, member = m // GROUP, m % GROUP
    count = (tl.max(tl.load(positions + row * W + token), 0) // PIECE + 1).to(tl.int32)
    d = tl.arange(0, BLOCK_D)
    best = tl.full([1], -float("inf"), tl.float32)
    mass = tl.zeros([1], tl.float32)
    total = tl.zeros([1, BLOCK_D], tl.float32)
    first = tl.zeros([], tl.int32)
    while first < count:
        for ahead in tl.static_range(UNROLL):
            piece = first + ahead
            slot = (row_head * pieces + piece) * GROUP * W + m
            there = (piece < count) & (m >= 0)
            peak = tl.load(stats + slot * 2, mask=there, other=-float("inf"))
            part = tl.load(stats + slot * 2 + 1, mask=there, other=0.0)
            wide = there[:, None] & (d < D)[None, :]
            values = tl.load(sums + slot[:, None] * D + d[None, :], mask=wide, other=0.0)
            best, mass, total = _merge(best, mass, total, peak, part, values)
        first += UNROLL
    target = ((row * W + token) * HK * GROUP + head * GROUP + member)[:, None] * D + d[None, :]
    tl.store(out + target, (total / mass[:, None]).to(out.dtype.element_ty), mask=(d < D)[None, :])


@triton.jit(do_not_specialize=["capacity", "W"])
def _attend_whole(
    q, k, v, positions, out, scale, cap, capacity, W,
    GROUP: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, BLOCK_D: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row_head = tl.program_id(0).to(tl.int64)
    row, head = row_head // HK, row_head % HK
    blocks = tl.num_programs(1)
    block = blocks - 1 - tl.program_id(1)  # the longest first
    m, real, at, place, inside, query = _query_block(
        q, positions, row, head, block * BLOCK_M, GROUP * W, W, GROUP, HK, D, BLOCK_M, BLOCK_D
    )
    last = tl.max(at, 0)
    best = tl.full([BLOCK_M], -float("inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    piece = tl.zeros([], tl.int32)
    if WINDOW > 0:
        piece = (tl.maximum(tl.min(tl.where(real, at, last), 0) - WINDOW + 1, 0) // PIECE).to(tl.int32)
    while piece * PIECE <= last:
        peak, part, values = _attend_piece(
            query, at, last, k, v, row_head * capacity, piece, scale, cap, capacity, last, positions,
            D, WINDOW, CAPPED, BLOCK_M, TILE, PIECE, BLOCK_D, EXACT, False,
        )  # fmt: skip
        best, mass, total = _merge(best, mass, total, peak, part, values)
        piece += 1
    mass = tl.where(real, mass, 1.0)
    tl.store(out + place, (total / mass[:, None]).to(out.dtype.element_ty), mask=inside)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    scale: float,
    window: int | None = None,
    out: Tensor | None = None,
    paths: Tensor | None = None,
    cap: float = 0.0,
) -> Tensor:
    """queries [B, W, HQ, D] at positions [B, W] (consecutive) over keys, values [B, HK, C, D] -> [B, W, HQ D].

    A query sees the keys up to its own position, ``window`` of them at most. ``out`` [at least B W, HQ D]: where the
    result is written, in its first rows, and returned as it is. With ``paths`` [W, levels] the run is a tree of one
    row (``TreePlaces``): keys lie in the order of the run behind the position of its first token, the root. ``cap``:
    scores are bounded by it, smoothly; 0: they are not.
    """
    rows, width, q_heads, size = queries.shape
    heads, capacity = keys.shape[1], keys.shape[2]
    group = q_heads // heads
    result = torch.empty_like(queries).view(rows, width, q_heads * size) if out is None else out
    positions = positions.contiguous()
    common = {"GROUP": group, "HK": heads, "D": size, "PIECE": PIECE, "enable_fp_fusion": False}
    common |= {"BLOCK_D": max(16, triton.next_power_of_2(size))}
    tiles = {"WINDOW": window or 0, "BLOCK_M": _BLOCK_M, "TILE": _TILE, "EXACT": queries.dtype == torch.float32}
    tiles |= {"CAPPED": cap != 0, "num_warps": 4}
    if size > 128:  # float32 tiles of two stages do not fit into shared memory
        tiles |= {"num_warps": 8, "num_stages": 1}
    blocks = triton.cdiv(group * width, _BLOCK_M)
    if group * width > _FEW and paths is None:
        _attend_whole[(rows * heads, blocks)](
            queries, keys, values, positions, result, scale, cap, capacity, width, **tiles, **common
        )
        return result
    pieces = triton.cdiv(capacity, PIECE)
    sums = torch.empty((rows * heads * pieces * group * width, size), dtype=torch.float32, device=queries.device)
    stats = torch.empty((sums.shape[0], 2), dtype=torch.float32, device=queries.device)
    _attend_split[(rows * heads, pieces, blocks if paths is None else width)](
        queries, keys, values, positions, positions if paths is None else paths, sums, stats, scale, cap, capacity,
        pieces, width, 0 if paths is None else paths.shape[1], TREE=paths is not None, **tiles, **common
    )  # fmt: skip
    _merge_split[(rows * heads, group * width)](
        sums, stats, positions, result, pieces, width, UNROLL=_UNROLL, num_warps=2, **common
    )  # fmt: skip
    return result
