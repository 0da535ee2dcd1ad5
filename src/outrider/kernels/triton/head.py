"""Rotation, attention and argmax of a trained head, a kernel each, for ``drafters/head/backends/triton_backend.py``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 128
Buffers = tuple[Tensor, Tensor]  # keys and values [B, Hk, C, D], by position


@triton.jit(do_not_specialize=["row_step", "capacity", "T"])
def _turn(
    qkv, speed, positions, places, rows, queries, keys, values, row_step, capacity, T,
    HQ: tl.constexpr, HK: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, CHOSEN: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)  # r * T + t
    head = tl.program_id(1)  # queries first, then keys, then values
    row, t = token // T, token % T
    place = tl.arange(0, BLOCK)
    inside = place < HALF
    source = qkv + (token * (HQ + 2 * HK) + head) * 2 * HALF + place
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + HALF, mask=inside, other=0.0)
    at = tl.load(positions + row * row_step + t)
    if head < HQ + HK:
        angle = at.to(tl.float32) * tl.load(speed + place, mask=inside, other=0.0)
        c, s = tl.cos(angle), tl.sin(angle)
        a, b = low.to(tl.float32), high.to(tl.float32)
        low = (a * c - b * s).to(low.dtype)
        high = (b * c + a * s).to(high.dtype)
    if APART:
        at = tl.load(places + row * row_step + t)
    if CHOSEN:
        row = tl.load(rows + row)
    if head < HQ:
        target = queries + (token * HQ + head) * 2 * HALF + place
    elif head < HQ + HK:
        target = keys + ((row * HK + head - HQ) * capacity + at) * 2 * HALF + place
    else:
        target = values + ((row * HK + head - HQ - HK) * capacity + at) * 2 * HALF + place
    tl.store(target, low, mask=inside)
    tl.store(target + HALF, high, mask=inside)


def turn_and_store(
    qkv: Tensor,
    speed: Tensor,
    positions: Tensor,
    buffers: Buffers,
    rows: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """qkv [R, T, (H + 2 Hk) D] side by side at positions [R or 1, T] -> queries [R, T, H, D].

    Keys and values go into the buffers, into ``rows`` [R] of them or all, to their positions or to ``places``, as many.
    Queries and keys are turned by rotary positions; ``speed`` [D / 2] is the angle by which each pair of numbers turns
    from one position to the next.
    """
    count, width, _ = qkv.shape
    k_heads, capacity, half = buffers[0].shape[1], buffers[0].shape[2], speed.shape[0]
    q_heads = qkv.shape[-1] // (2 * half) - 2 * k_heads
    queries = torch.empty((count, width, q_heads, 2 * half), dtype=qkv.dtype, device=qkv.device)
    positions = positions.contiguous()
    _turn[(count * width, q_heads + 2 * k_heads)](
        qkv.contiguous(), speed, positions, positions if places is None else places.contiguous(),
        positions if rows is None else rows.contiguous(), queries, *buffers,
        width if positions.shape[0] > 1 else 0, capacity, width,
        HQ=q_heads, HK=k_heads, HALF=half, BLOCK=triton.next_power_of_2(half), CHOSEN=rows is not None,
        APART=places is not None, num_warps=1,
    )  # fmt: skip
    return queries


@triton.jit
def _weighed(
    query, k, v, place, there, best, mass, total, scale, D: tl.constexpr, BLOCK_D: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """Softmax so far, with the keys and values at these places: highest score, sum of weights, weighted sum."""
    d = tl.arange(0, BLOCK_D)
    tile = there[:, None] & (d < D)[None, :]
    key = tl.load(k + place[:, None] * D + d[None, :], mask=tile, other=0.0)
    value = tl.load(v + place[:, None] * D + d[None, :], mask=tile, other=0.0)
    if EXACT:
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    else:
        score = tl.dot(query, tl.trans(key)) * scale
    score = tl.where(there[None, :], score, -float("inf"))
    higher = tl.maximum(best, tl.max(score, 1))
    share = tl.exp(score - higher[:, None])
    fade = tl.exp(best - higher)
    mass = mass * fade + tl.sum(share, 1)
    if EXACT:
        total = total * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
    else:
        total = total * fade[:, None] + tl.dot(share.to(value.dtype), value)
    return higher, mass, total


@triton.jit(do_not_specialize=["capacity", "window", "own", "room", "levels"])
def _look(
    q, k, v, positions, k_apart, v_apart, chains, out, scale, capacity, window, own, room, levels,
    GROUP: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr,
    FEW: tl.constexpr, BLOCK_D: tl.constexpr, EXACT: tl.constexpr, BRANCHES: tl.constexpr,
):  # fmt: skip
    row_head = tl.program_id(0).to(tl.int64)
    m, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    here = (m < GROUP)[:, None] & (d < D)[None, :]
    query = tl.load(q + (row_head * GROUP + m)[:, None] * D + d[None, :], mask=here, other=0.0)
    best = tl.full([BLOCK_M], -float("inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row, head = row_head // HK, row_head % HK
    last = tl.load(positions + row)
    text = row_head
    if BRANCHES:  # all of one text
        text = head
        last -= levels
    first = tl.maximum(last - own - window + 1, 0)
    start = first // TILE * TILE
    while start <= last:
        n = start + tl.arange(0, TILE)
        there = (n >= first) & (n <= last)
        best, mass, total = _weighed(
            query, k, v, text * capacity + n, there, best, mass, total, scale, D, BLOCK_D, EXACT
        )
        start += TILE
    if BRANCHES:
        level = tl.arange(0, FEW)
        place = head * room + tl.load(chains + row * levels + level, mask=level < levels, other=0)
        best, mass, total = _weighed(
            query, k_apart, v_apart, place, level < levels, best, mass, total, scale, D, BLOCK_D, EXACT
        )
    result = total / mass[:, None]
    tl.store(out + (row_head * GROUP + m)[:, None] * D + d[None, :], result.to(out.dtype.element_ty), mask=here)


def look_back(query: Tensor, buffers: Buffers, own: int, positions: Tensor, window: int) -> Tensor:
    """query [B, 1, H, D] at positions [B, 1] over the buffers up to there -> [B, 1, H D].

    The last ``own`` places are guesses, all of which are seen; of the text before them ``window`` tokens are.
    """
    return _looked(query, buffers, buffers, positions, positions, window, own, 0)


def look_back_on_branches(
    query: Tensor, text: Buffers, apart: Buffers, chains: Tensor, positions: Tensor, window: int
) -> Tensor:
    """query [1, K, H, D] of K branches at positions [1, K] -> [1, K, H D].

    A branch sees ``window`` tokens of the text, which ends where the branches begin, and the guesses that lead to it:
    places in ``apart`` [1, Hk, S, D] by its chain [K, levels].
    """
    return _looked(query, text, apart, chains, positions, window, 0, chains.shape[1])


def _looked(
    query: Tensor, text: Buffers, apart: Buffers, chains: Tensor, positions: Tensor, window: int, own: int, levels: int
) -> Tensor:
    heads, size = query.shape[2:]
    shared, capacity = text[0].shape[1], text[0].shape[2]
    out = torch.empty((*query.shape[:2], heads * size), dtype=query.dtype, device=query.device)
    _look[(query.shape[0] * query.shape[1] * shared,)](
        query.contiguous(), *text, positions.contiguous(), *apart, chains.contiguous(), out, size**-0.5, capacity,
        window, own, apart[0].shape[2], levels,
        GROUP=heads // shared, HK=shared, D=size, BLOCK_M=max(16, triton.next_power_of_2(heads // shared)), TILE=_TILE,
        FEW=max(16, triton.next_power_of_2(levels)), BLOCK_D=max(16, triton.next_power_of_2(size)),
        EXACT=query.dtype == torch.float32, BRANCHES=levels > 0, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _likeliest(logits, tokens, out, count, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    x = tl.load(logits + line * count + place, mask=place < count, other=-float("inf")).to(tl.float32)
    tl.store(out + line, tl.load(tokens + tl.minimum(tl.argmax(x, 0), count - 1)))


def likeliest(logits: Tensor, tokens: Tensor) -> Tensor:
    """The token with the highest of logits [B, N]; ``tokens`` [N] are those they are of -> [B]."""
    rows, count = logits.shape
    out = torch.empty(rows, dtype=tokens.dtype, device=tokens.device)
    block = triton.next_power_of_2(count)
    _likeliest[(rows,)](logits.contiguous(), tokens, out, count, BLOCK=block, num_warps=max(1, min(32, block // 256)))
    return out


@triton.jit
def _likeliest_few(logits, tokens, chances, out, count, FEW: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    x = tl.load(logits + line * count + place, mask=place < count, other=-float("inf")).to(tl.float32)
    most = tl.max(x, 0)
    mass = most + tl.log(tl.sum(tl.exp(x - most), 0))
    for rank in tl.static_range(FEW):
        best = tl.argmax(x, 0)
        tl.store(chances + line * FEW + rank, tl.max(x, 0) - mass)
        tl.store(out + line * FEW + rank, tl.load(tokens + tl.minimum(best, count - 1)))
        x = tl.where(place == best, -float("inf"), x)


def likeliest_few(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The so many highest of logits [B, N], highest first: log-probabilities [B, count], and which of ``tokens`` [N]
    they are of [B, count]."""
    rows, all_of_them = logits.shape
    chances = torch.empty((rows, count), dtype=torch.float32, device=logits.device)
    out = torch.empty((rows, count), dtype=tokens.dtype, device=tokens.device)
    block = triton.next_power_of_2(all_of_them)
    _likeliest_few[(rows,)](
        logits.contiguous(), tokens, chances, out, all_of_them, FEW=count, BLOCK=block,
        num_warps=max(1, min(32, block // 256)),
    )  # fmt: skip
    return chances, out
