"""What a trained head does between its matrix products, in one launch each; ``drafters/head_fused.py`` uses them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 64


@triton.jit
def _norms(a, b, gain_a, gain_b, out, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    if tl.program_id(1) == 0:
        value = tl.load(a + row * SIZE + place, mask=inside, other=0.0)
        gain = tl.load(gain_a + place, mask=inside, other=0.0)
    else:
        value = tl.load(b + row * SIZE + place, mask=inside, other=0.0)
        gain = tl.load(gain_b + place, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    target = out + (row * 2 + tl.program_id(1)) * SIZE + place
    tl.store(target, (wide * scale * gain.to(tl.float32)).to(value.dtype), mask=inside)


def norms_side_by_side(a: Tensor, b: Tensor, gains: tuple[Tensor, Tensor], eps: float) -> Tensor:
    """Two tensors [..., size], each with a root-mean-square norm of its own -> [..., 2 size]."""
    a, b = a.contiguous(), b.contiguous()
    size = a.shape[-1]
    out = torch.empty((*a.shape[:-1], 2 * size), dtype=a.dtype, device=a.device)
    block = triton.next_power_of_2(size)
    _norms[(a.numel() // size, 2)](a, b, *gains, out, eps, SIZE=size, BLOCK=block, num_warps=max(1, block // 256))
    return out


@triton.jit
def _turn(
    qkv, speed, positions, queries, keys, values, row_step,
    T: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)  # b * T + t
    head = tl.program_id(1)  # queries first, then keys, then values
    row, t = token // T, token % T
    place = tl.arange(0, BLOCK)
    inside = place < HALF
    source = qkv + (token * (HQ + 2 * HK) + head) * 2 * HALF + place
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + HALF, mask=inside, other=0.0)
    if head < HQ + HK:
        at = tl.load(positions + row * row_step + t).to(tl.float32)
        angle = at * tl.load(speed + place, mask=inside, other=0.0)
        c, s = tl.cos(angle), tl.sin(angle)
        a, b = low.to(tl.float32), high.to(tl.float32)
        low = (a * c - b * s).to(low.dtype)
        high = (b * c + a * s).to(high.dtype)
    if head < HQ:
        target = queries + ((row * HQ + head) * T + t) * 2 * HALF + place
    elif head < HQ + HK:
        target = keys + ((row * HK + head - HQ) * T + t) * 2 * HALF + place
    else:
        target = values + ((row * HK + head - HQ - HK) * T + t) * 2 * HALF + place
    tl.store(target, low, mask=inside)
    tl.store(target + HALF, high, mask=inside)


def turned(qkv: Tensor, speed: Tensor, positions: Tensor, heads: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [B, T, (H + 2 Hk) D] side by side at positions [B or 1, T] -> queries, keys and values [B, H or Hk, T, D].

    Queries and keys are turned by rotary positions; ``speed`` [D / 2] is how fast each pair of numbers turns.
    """
    rows, width, _ = qkv.shape
    half, (q_heads, k_heads) = speed.shape[0], heads
    made = [
        torch.empty((rows, n, width, 2 * half), dtype=qkv.dtype, device=qkv.device) for n in (q_heads, k_heads, k_heads)
    ]
    positions = positions.contiguous()
    _turn[(rows * width, q_heads + 2 * k_heads)](
        qkv.contiguous(), speed, positions, *made, width if positions.shape[0] > 1 else 0,
        T=width, HQ=q_heads, HK=k_heads, HALF=half, BLOCK=triton.next_power_of_2(half), num_warps=1,
    )  # fmt: skip
    return made[0], made[1], made[2]


@triton.jit
def _joined(query, key, value, there, scale, best, mass, total, EXACT: tl.constexpr):
    """A tile of keys and values more in a running softmax."""
    if EXACT:
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    else:
        score = tl.dot(query, tl.trans(key)) * scale
    score = tl.where(there[None, :], score, -float("inf"))
    higher = tl.maximum(best, tl.max(score, 1))
    anchor = tl.where(higher == -float("inf"), 0.0, higher)
    share = tl.exp(score - anchor[:, None])
    fade = tl.exp(best - anchor)
    mass = mass * fade + tl.sum(share, 1)
    if EXACT:
        total = total * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
    else:
        total = total * fade[:, None] + tl.dot(share.to(value.dtype), value)
    return higher, mass, total


@triton.jit
def _look(
    q, k, v, own_k, own_v, positions, out, scale, capacity, window, own,
    GROUP: tl.constexpr, HK: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, OWN: tl.constexpr, BLOCK_D: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row_head = tl.program_id(0).to(tl.int64)
    m, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    here = (m < GROUP)[:, None] & (d < D)[None, :]
    query = tl.load(q + (row_head * GROUP + m)[:, None] * D + d[None, :], mask=here, other=0.0)
    best = tl.full([BLOCK_M], -float("inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    last = tl.load(positions + row_head // HK) - own  # of the text; behind it stand the guesses' own
    first = tl.maximum(last - window + 1, 0)
    start = first // TILE * TILE
    while start <= last:
        n = start + tl.arange(0, TILE)
        there = (n >= first) & (n <= last)
        place = (row_head * capacity + n)[:, None] * D + d[None, :]
        tile = there[:, None] & (d < D)[None, :]
        key = tl.load(k + place, mask=tile, other=0.0)
        value = tl.load(v + place, mask=tile, other=0.0)
        best, mass, total = _joined(query, key, value, there, scale, best, mass, total, EXACT)
        start += TILE
    n = tl.arange(0, OWN)
    place = (row_head * own + n)[:, None] * D + d[None, :]
    tile = (n < own)[:, None] & (d < D)[None, :]
    key = tl.load(own_k + place, mask=tile, other=0.0)
    value = tl.load(own_v + place, mask=tile, other=0.0)
    best, mass, total = _joined(query, key, value, n < own, scale, best, mass, total, EXACT)
    result = total / mass[:, None]
    tl.store(out + (row_head * GROUP + m)[:, None] * D + d[None, :], result.to(out.dtype.element_ty), mask=here)


def look_back(
    query: Tensor, text: tuple[Tensor, Tensor], own: list[tuple[Tensor, Tensor]], positions: Tensor, window: int
) -> Tensor:
    """query [B, H, 1, D] at positions [B, 1] over keys and values [B, Hk, C, D] of the text and guesses -> [B, 1, H D].

    ``own`` are keys and values [B, Hk, 1, D] of the guesses, the last of them at ``positions``; of the text before
    the first of them ``window`` tokens are seen.
    """
    rows, heads, _, size = query.shape
    keys, values = text
    shared, capacity = keys.shape[1], keys.shape[2]
    own_keys, own_values = (torch.cat(parts, 2) for parts in zip(*own, strict=True)) if own else (keys, values)
    out = torch.empty((rows, 1, heads * size), dtype=query.dtype, device=query.device)
    _look[(rows * shared,)](
        query.contiguous(), keys, values, own_keys, own_values, positions.contiguous(), out, size**-0.5, capacity,
        window, len(own), GROUP=heads // shared, HK=shared, D=size,
        BLOCK_M=max(16, triton.next_power_of_2(heads // shared)), TILE=_TILE,
        OWN=max(16, triton.next_power_of_2(max(1, len(own)))), BLOCK_D=max(16, triton.next_power_of_2(size)),
        EXACT=query.dtype == torch.float32, num_warps=4,
    )  # fmt: skip
    return out
