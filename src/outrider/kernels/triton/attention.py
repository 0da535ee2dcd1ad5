"""Attention over a preallocated KV cache that reads only the tokens in use.

Keys are cut into pieces of one size from position 0 on. Pieces beyond the last query are not touched; pieces a
query may not see add exact zeros to it. So what a query gets depends on its position and the shapes of the run
alone: neither on the buffer's capacity nor on how far its neighbours reach.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 128  # keys per program
_TILE = 64  # keys per product
_CHUNK = 16  # pieces joined at a time


@triton.jit
def _attend(
    q, k, v, positions, sums, stats, scale, capacity, pieces,
    W: tl.constexpr, GROUP: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, BLOCK_D: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row_head = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    row, head = row_head // HK, row_head % HK
    last = tl.load(positions + row * W + W - 1)
    if piece * PIECE <= last:
        m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)  # a query head of the group, then a token
        token, member = m % W, m // W
        real = m < GROUP * W
        d = tl.arange(0, BLOCK_D)
        at = tl.load(positions + row * W + token, mask=real, other=0)
        query = tl.load(
            q + ((row * W + token) * HK * GROUP + head * GROUP + member)[:, None] * D + d[None, :],
            mask=real[:, None] & (d < D)[None, :], other=0.0,
        )  # fmt: skip
        best = tl.full([BLOCK_M], -float("inf"), tl.float32)
        mass = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        base = row_head * capacity
        for first in range(0, PIECE, TILE):
            n = piece * PIECE + first + tl.arange(0, TILE)
            used = (n <= last) & (n < capacity)
            where = (base + n)[:, None] * D + d[None, :]
            there = used[:, None] & (d < D)[None, :]
            key = tl.load(k + where, mask=there, other=0.0)
            if EXACT:
                score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            else:
                score = tl.dot(query, tl.trans(key)) * scale
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
        slot = (row_head * pieces + piece) * GROUP * W + m
        tl.store(sums + slot[:, None] * D + d[None, :], total, mask=real[:, None] & (d < D)[None, :])
        tl.store(stats + slot * 2, best, mask=real)
        tl.store(stats + slot * 2 + 1, mass, mask=real)


@triton.jit
def _join(
    sums, stats, positions, out, pieces,
    W: tl.constexpr, GROUP: tl.constexpr, HK: tl.constexpr, D: tl.constexpr,
    PIECE: tl.constexpr, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_head = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1)
    row, head = row_head // HK, row_head % HK
    token, member = m % W, m // W
    count = (tl.load(positions + row * W + W - 1) // PIECE + 1).to(tl.int32)
    d = tl.arange(0, BLOCK_D)
    best = tl.full([1], -float("inf"), tl.float32)
    mass = tl.zeros([1], tl.float32)
    total = tl.zeros([BLOCK_D], tl.float32)
    first = tl.zeros([], tl.int32)
    while first < count:
        piece = first + tl.arange(0, CHUNK)
        there = piece < count
        slot = (row_head * pieces + piece) * GROUP * W + m
        peak = tl.load(stats + slot * 2, mask=there, other=-float("inf"))
        part = tl.load(stats + slot * 2 + 1, mask=there, other=0.0)
        wide = there[:, None] & (d < D)[None, :]
        values = tl.load(sums + slot[:, None] * D + d[None, :], mask=wide, other=0.0)
        higher = tl.maximum(best, tl.max(peak, 0))
        anchor = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp(peak - anchor)
        fade = tl.exp(best - anchor)
        mass = mass * fade + tl.sum(part * weight, 0)
        total = total * fade + tl.sum(values * weight[:, None], 0)
        best = higher
        first += CHUNK
    result = total / mass
    target = out + ((row * W + token) * HK * GROUP + head * GROUP + member) * D + d
    tl.store(target, result.to(out.dtype.element_ty), mask=d < D)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float, window: int | None = None
) -> Tensor:
    """queries [B, W, HQ, D] at positions [B, W] (consecutive) over keys, values [B, HK, C, D] -> [B, W, HQ D].

    A query sees the keys up to its own position, ``window`` of them at most.
    """
    rows, width, q_heads, size = queries.shape
    heads, capacity = keys.shape[1], keys.shape[2]
    group = q_heads // heads
    pieces = triton.cdiv(capacity, PIECE)
    block_m = min(64, max(16, triton.next_power_of_2(group * width)))
    block_d = max(16, triton.next_power_of_2(size))
    sums = torch.empty((rows * heads * pieces * group * width, size), dtype=torch.float32, device=queries.device)
    stats = torch.empty((sums.shape[0], 2), dtype=torch.float32, device=queries.device)
    out = torch.empty_like(queries)
    positions = positions.contiguous()
    common = {"W": width, "GROUP": group, "HK": heads, "D": size, "PIECE": PIECE, "BLOCK_D": block_d}
    _attend[(rows * heads, pieces, triton.cdiv(group * width, block_m))](
        queries, keys, values, positions, sums, stats, scale, capacity, pieces,
        WINDOW=window or 0, BLOCK_M=block_m, TILE=_TILE, EXACT=queries.dtype == torch.float32, num_warps=4, **common,
    )  # fmt: skip
    _join[(rows * heads, group * width)](
        sums, stats, positions, out, pieces, CHUNK=_CHUNK, num_warps=2, **common
    )  # fmt: skip
    return out.view(rows, width, q_heads * size)
