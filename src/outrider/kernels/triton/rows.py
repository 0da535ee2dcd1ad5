"""Row-wise kernels between matrix products: norm with residual sum, gated activation, rotary embedding."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _normed(value, weight, place, inside, eps, SIZE: tl.constexpr, OFFSET: tl.constexpr, LATE: tl.constexpr):
    """The norm of one row. LATE: rounded to the row's type behind the weight only, not before it, too."""
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normed = wide * scale
    if not LATE:
        normed = normed.to(value.dtype).to(tl.float32)
    gain = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    if OFFSET != 0:
        gain += OFFSET
    return (normed * gain).to(value.dtype)


@triton.jit
def _norm(
    x, delta, after, total, out, weight, eps, share,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, AFTER: tl.constexpr, SHARE: tl.constexpr,
    NORM: tl.constexpr, OFFSET: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    value = tl.load(x + row * SIZE + place, mask=inside, other=0.0)
    if ADD:
        more = tl.load(delta + row * SIZE + place, mask=inside, other=0.0)
        if AFTER:
            more = _normed(more, after, place, inside, eps, SIZE, OFFSET, LATE)
        if SHARE:
            more = (more.to(tl.float32) * share).to(value.dtype)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(total + row * SIZE + place, value, mask=inside)
    if NORM:
        normed = _normed(value, weight, place, inside, eps, SIZE, OFFSET, LATE)
        tl.store(out + row * SIZE + place, normed, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, late: bool = False) -> Tensor:
    """Root-mean-square norm of the last dimension, in float32, as transformers' RMSNorm modules do it.

    ``offset`` is added to the weight. The normed numbers are rounded to their type before they are multiplied with the
    weight, and again behind it; ``late``: behind it only.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _norm[(x.numel() // size,)](
        x, x, x, out, out, weight, eps, 1.0, SIZE=size, BLOCK=block, ADD=False, AFTER=False, SHARE=False, NORM=True,
        OFFSET=offset, LATE=late, num_warps=_warps(block),
    )  # fmt: skip
    return out


def add_rms_norm(
    x: Tensor,
    delta: Tensor,
    weight: Tensor | None,
    eps: float,
    offset: float = 0.0,
    late: bool = False,
    after: Tensor | None = None,
    share: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The residual sum x + ``share`` * delta, and its norm; without a ``weight`` the sum itself for its norm.

    ``after``: the weight of a norm that delta is given before. ``offset``, ``late``: see ``rms_norm``, of both norms.
    """
    x, delta = x.contiguous(), delta.contiguous()
    total = torch.empty_like(x)
    out = total if weight is None else torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _norm[(x.numel() // size,)](
        x, delta, x if after is None else after, total, out, x if weight is None else weight, eps, share,
        SIZE=size, BLOCK=block, ADD=True, AFTER=after is not None, SHARE=share != 1, NORM=weight is not None,
        OFFSET=offset, LATE=late, num_warps=_warps(block),
    )  # fmt: skip
    return total, out


def _warps(block: int) -> int:
    return max(1, min(16, block // 256))


@triton.jit
def _gate(x, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE
    gate = tl.load(x + row * 2 * SIZE + place, mask=inside, other=0.0)
    up = tl.load(x + row * 2 * SIZE + SIZE + place, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    if GELU:  # 0.5 x (1 + tanh(y)) is x / (1 + exp(-2 y))
        active = (wide / (1.0 + tl.exp(-1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)))).to(gate.dtype)
    else:
        active = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out + row * SIZE + place, (active.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def silu_gate(x: Tensor, rows: int | None = None) -> Tensor:
    """silu(gate) * up from both side by side: [..., 2 F] -> [..., F]; of [n, 2 F] with ``rows`` -> [rows, F], of which
    the first n are written."""
    return _gated(x, rows, gelu=False)


def gelu_gate(x: Tensor, rows: int | None = None) -> Tensor:
    """The same with GELU by its approximation with tanh (``gelu_pytorch_tanh``) in place of SiLU."""
    return _gated(x, rows, gelu=True)


def _gated(x: Tensor, rows: int | None, gelu: bool) -> Tensor:
    x = x.contiguous()
    size = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], size) if rows is None else (rows, size), dtype=x.dtype, device=x.device)
    block = 1024
    _gate[(x.numel() // (2 * size), triton.cdiv(size, block))](
        x, out, SIZE=size, BLOCK=block, GELU=gelu, num_warps=4
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["capacity", "W"])
def _rotate(
    qkv, cos, sin, positions, queries, keys, values, capacity, W,
    HQ: tl.constexpr, HK: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr, REST_BLOCK: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)  # b * W + i
    head = tl.program_id(1)  # queries first, then keys, then values
    TURNED: tl.constexpr = 2 * HALF
    D: tl.constexpr = TURNED + REST
    place = tl.arange(0, BLOCK)
    inside = place < HALF
    source = qkv + (token * (HQ + 2 * HK) + head) * D
    low = tl.load(source + place, mask=inside, other=0.0)
    high = tl.load(source + place + HALF, mask=inside, other=0.0)
    kind = low.dtype
    at = tl.load(positions + token)
    row = token // W
    if head < HQ + HK:
        c1 = tl.load(cos + token * TURNED + place, mask=inside, other=0.0).to(tl.float32)
        s1 = tl.load(sin + token * TURNED + place, mask=inside, other=0.0).to(tl.float32)
        c2 = tl.load(cos + token * TURNED + HALF + place, mask=inside, other=0.0).to(tl.float32)
        s2 = tl.load(sin + token * TURNED + HALF + place, mask=inside, other=0.0).to(tl.float32)
        a, b = low.to(tl.float32), high.to(tl.float32)
        if ROUND:
            # Products are rounded to the model's type before the sum, as transformers' own operations round them.
            low = ((a * c1).to(kind).to(tl.float32) - (b * s1).to(kind).to(tl.float32)).to(kind)
            high = ((b * c2).to(kind).to(tl.float32) + (a * s2).to(kind).to(tl.float32)).to(kind)
        else:
            low = (a * c1 - b * s1).to(kind)
            high = (b * c2 + a * s2).to(kind)
    if head < HQ:
        target = queries + (token * HQ + head) * D
    elif head < HQ + HK:
        target = keys + ((row * HK + head - HQ) * capacity + at) * D
    else:
        target = values + ((row * HK + head - HQ - HK) * capacity + at) * D
    tl.store(target + place, low, mask=inside)
    tl.store(target + place + HALF, high, mask=inside)
    if REST > 0:  # what is not turned
        behind = TURNED + tl.arange(0, REST_BLOCK)
        more = behind < D
        tl.store(target + behind, tl.load(source + behind, mask=more, other=0.0), mask=more)


def rotate_and_store(
    qkv: Tensor, turn: tuple[Tensor, Tensor], positions: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Rotary positions for queries and keys; keys and values go straight into their buffers [B, HK, C, D].

    qkv [B, W, (HQ + 2 HK) D] side by side, turn = cos, sin [B, W, R], positions [B, W] -> queries [B, W, HQ, D]. The
    first R numbers of a head are turned. In cos and sin of float32 sums of narrower numbers are rounded once.
    """
    rows, width = positions.shape
    heads, capacity, size = keys.shape[1], keys.shape[2], keys.shape[3]
    q_heads, turned = qkv.shape[-1] // size - 2 * heads, turn[0].shape[-1]
    cos, sin = (x.expand(rows, width, turned).contiguous() for x in turn)
    queries = torch.empty((rows, width, q_heads, size), dtype=qkv.dtype, device=qkv.device)
    _rotate[(rows * width, q_heads + 2 * heads)](
        qkv.contiguous(), cos, sin, positions.contiguous(), queries, keys, values, capacity, width,
        HQ=q_heads, HK=heads, HALF=turned // 2, BLOCK=triton.next_power_of_2(turned // 2), REST=size - turned,
        REST_BLOCK=triton.next_power_of_2(max(1, size - turned)), ROUND=cos.dtype == qkv.dtype, num_warps=1,
    )  # fmt: skip
    return queries
