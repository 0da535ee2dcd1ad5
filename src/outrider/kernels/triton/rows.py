"""Row-wise kernels between matrix products: norm with residual sum, gated activation, rotary embedding."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm(x, delta, total, out, weight, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    value = tl.load(x + row * SIZE + place, mask=inside, other=0.0)
    if ADD:
        value = (value.to(tl.float32) + tl.load(delta + row * SIZE + place, mask=inside, other=0.0).to(tl.float32)).to(
            value.dtype
        )
        tl.store(total + row * SIZE + place, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normed = (wide * scale).to(value.dtype)
    gain = tl.load(weight + place, mask=inside, other=0.0)
    tl.store(out + row * SIZE + place, (normed.to(tl.float32) * gain.to(tl.float32)).to(value.dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of the last dimension, in float32, as transformers' RMSNorm modules do it."""
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _norm[(x.numel() // size,)](
        x, x, out, out, weight, eps, SIZE=size, BLOCK=block, ADD=False, num_warps=_warps(block)
    )  # fmt: skip
    return out


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual sum x + delta, and its norm."""
    x, delta = x.contiguous(), delta.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _norm[(x.numel() // size,)](
        x, delta, total, out, weight, eps, SIZE=size, BLOCK=block, ADD=True, num_warps=_warps(block)
    )  # fmt: skip
    return total, out


def _warps(block: int) -> int:
    return max(1, min(16, block // 256))


@triton.jit
def _gate(x, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE
    gate = tl.load(x + row * 2 * SIZE + place, mask=inside, other=0.0)
    up = tl.load(x + row * 2 * SIZE + SIZE + place, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out + row * SIZE + place, (active.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def silu_gate(x: Tensor, rows: int | None = None) -> Tensor:
    """silu(gate) * up from both side by side: [..., 2 F] -> [..., F]; of [n, 2 F] with ``rows`` -> [rows, F], of which
    the first n are written."""
    x = x.contiguous()
    size = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], size) if rows is None else (rows, size), dtype=x.dtype, device=x.device)
    block = 1024
    _gate[(x.numel() // (2 * size), triton.cdiv(size, block))](x, out, SIZE=size, BLOCK=block, num_warps=4)
    return out


@triton.jit(do_not_specialize=["capacity", "W"])
def _rotate(
    qkv, cos, sin, positions, queries, keys, values, capacity, W,
    HQ: tl.constexpr, HK: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)  # b * W + i
    head = tl.program_id(1)  # queries first, then keys, then values
    D: tl.constexpr = 2 * HALF
    place = tl.arange(0, BLOCK)
    inside = place < HALF
    source = qkv + (token * (HQ + 2 * HK) + head) * D + place
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + HALF, mask=inside, other=0.0)
    kind = low.dtype
    at = tl.load(positions + token)
    row = token // W
    if head < HQ + HK:
        c1 = tl.load(cos + token * D + place, mask=inside, other=0.0).to(tl.float32)
        s1 = tl.load(sin + token * D + place, mask=inside, other=0.0).to(tl.float32)
        c2 = tl.load(cos + token * D + HALF + place, mask=inside, other=0.0).to(tl.float32)
        s2 = tl.load(sin + token * D + HALF + place, mask=inside, other=0.0).to(tl.float32)
        a, b = low.to(tl.float32), high.to(tl.float32)
        # Products are rounded to the model's type before the sum, as transformers' own operations round them.
        low = ((a * c1).to(kind).to(tl.float32) - (b * s1).to(kind).to(tl.float32)).to(kind)
        high = ((b * c2).to(kind).to(tl.float32) + (a * s2).to(kind).to(tl.float32)).to(kind)
    if head < HQ:
        target = queries + (token * HQ + head) * D + place
    elif head < HQ + HK:
        target = keys + ((row * HK + head - HQ) * capacity + at) * D + place
    else:
        target = values + ((row * HK + head - HQ - HK) * capacity + at) * D + place
    tl.store(target, low, mask=inside)
    tl.store(target + HALF, high, mask=inside)


def rotate_and_store(
    qkv: Tensor, turn: tuple[Tensor, Tensor], positions: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Rotary positions for queries and keys; keys and values go straight into their buffers [B, HK, C, D].

    qkv [B, W, (HQ + 2 HK) D] side by side, turn = cos, sin [B, W, D], positions [B, W] -> queries [B, W, HQ, D].
    """
    rows, width = positions.shape
    heads, capacity, size = keys.shape[1], keys.shape[2], keys.shape[3]
    q_heads = qkv.shape[-1] // size - 2 * heads
    cos, sin = (x.expand(rows, width, size).contiguous() for x in turn)
    queries = torch.empty((rows, width, q_heads, size), dtype=qkv.dtype, device=qkv.device)
    _rotate[(rows * width, q_heads + 2 * heads)](
        qkv.contiguous(), cos, sin, positions.contiguous(), queries, keys, values, capacity, width,
        HQ=q_heads, HK=heads, HALF=size // 2, BLOCK=triton.next_power_of_2(size // 2), num_warps=1,
    )  # fmt: skip
    return queries
