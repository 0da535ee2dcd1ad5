"""Matrix products of a few rows, fused with the norm before them and the gate or residual sum after them.

A row of a product reads the whole matrix, so a few rows take as long as the memory does: what can be saved is launches.
A norm is a factor for the whole row and is found beside the product, out of the same numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.rows import rms_norm, silu_gate

FEW = 16
"""Rows up to which every row reads the matrix by itself, mostly from the cache; for more there are libraries."""

Norm = tuple[Tensor, float]  # gain and epsilon


@triton.jit
def _times(
    x, weight, gain, n, there, eps,
    SIZE: tl.constexpr, STEP: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Rows n of a matrix, STEP numbers apart, times x [SIZE] or its norm -> [N] in float32."""
    total = tl.zeros([N, COLUMNS], tl.float32)
    squares = tl.zeros([COLUMNS], tl.float32)
    for start in tl.static_range(0, SIZE, COLUMNS):
        k = start + tl.arange(0, COLUMNS)
        value = tl.load(x + k, mask=k < SIZE, other=0.0).to(tl.float32)
        tile = tl.load(weight + n[:, None] * STEP + k[None, :], mask=there[:, None] & (k < SIZE)[None, :], other=0.0)
        if NORM:
            squares += value * value
            value *= tl.load(gain + k, mask=k < SIZE, other=0.0).to(tl.float32)
        total += tile.to(tl.float32) * value[None, :]
    result = tl.sum(total, 1)
    if NORM:
        result *= tl.rsqrt(tl.sum(squares, 0) / SIZE + eps)
    return result


@triton.jit
def product_kernel(
    x, weight, gain, plus, out, eps, outputs,
    SIZE: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, PLUS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * N + tl.arange(0, N)
    there = n < outputs
    y = _times(x + row * SIZE, weight, gain, n, there, eps, SIZE, SIZE, N, COLUMNS, NORM)
    if GATE:
        up = _times(x + row * SIZE, weight + outputs * SIZE, gain, n, there, eps, SIZE, SIZE, N, COLUMNS, NORM)
        y = y / (1.0 + tl.exp(-y)) * up
    if PLUS:
        y += tl.load(plus + row * outputs + n, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * outputs + n, y.to(out.dtype.element_ty), mask=there)


def product(
    x: Tensor, weight: Tensor, norm: Norm | None = None, gate: bool = False, plus: Tensor | None = None
) -> Tensor:
    """x [..., in] or its norm, times weight [out, in]; silu(first half) * second half with ``gate``; + ``plus``."""
    size, rows = x.shape[-1], x.numel() // x.shape[-1]
    if rows > FEW or weight.numel() >= 2**31:  # places in a matrix are counted in 32 bits
        return _large(x, weight, norm, gate, plus)
    outputs = weight.shape[0] // (2 if gate else 1)
    out = torch.empty((*x.shape[:-1], outputs), dtype=x.dtype, device=x.device)
    x, gain, eps = x.contiguous(), *(norm or (weight, 0.0))
    each = 4 if outputs <= 4096 else 8  # with as many warps, and narrow tiles: the quickest of 250 ways on an H200
    columns = max(64, triton.next_power_of_2(size) // 32)
    product_kernel[(rows, triton.cdiv(outputs, each))](
        x, weight, gain, x if plus is None else plus.contiguous(), out, eps, outputs,
        SIZE=size, N=each, COLUMNS=columns, NORM=norm is not None, GATE=gate, PLUS=plus is not None, num_warps=each,
    )  # fmt: skip
    return out


def _large(x: Tensor, weight: Tensor, norm: Norm | None, gate: bool, plus: Tensor | None) -> Tensor:
    x = x if norm is None else rms_norm(x, *norm)
    if plus is not None and not gate:
        flat = torch.addmm(plus.reshape(-1, plus.shape[-1]), x.reshape(-1, x.shape[-1]), weight.t())
        return flat.view(plus.shape)
    y = torch.nn.functional.linear(x, weight)
    y = silu_gate(y) if gate else y
    return y if plus is None else y + plus


@triton.jit
def join_kernel(
    a, b, chosen, gain_a, gain_b, weight, plus, out, eps, step_a, step_b, step_plus, outputs,
    SIZE: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    other = tl.load(chosen + row) if CHOSEN else row
    n = tl.program_id(1) * N + tl.arange(0, N)
    there = n < outputs
    y = tl.load(plus + row * step_plus + n, mask=there, other=0.0).to(tl.float32)
    y += _times(a + row * step_a, weight, gain_a, n, there, eps, SIZE, 2 * SIZE, N, COLUMNS, True)
    y += _times(b + other * step_b, weight + SIZE, gain_b, n, there, eps, SIZE, 2 * SIZE, N, COLUMNS, True)
    tl.store(out + row * outputs + n, y.to(out.dtype.element_ty), mask=there)


def join(
    both: tuple[Tensor, Tensor],
    gains: tuple[Tensor, Tensor],
    eps: float,
    weight: Tensor,
    plus: Tensor,
    chosen: Tensor | None = None,
) -> Tensor:
    """The norms of two tensors [..., size] side by side, times weight [out, 2 size], + plus [..., out].

    With ``chosen`` [...] the second is a table [V, size], of which these rows are taken.
    """
    size, rows = both[0].shape[-1], both[0].numel() // both[0].shape[-1]
    if rows > FEW or weight.numel() >= 2**31:
        second = both[1] if chosen is None else both[1][chosen]
        normed = [rms_norm(x, gain, eps) for x, gain in zip((both[0], second), gains, strict=True)]
        return _large(torch.cat(normed, -1), weight, None, False, plus)
    flat = [x.flatten(0, -2) for x in (*both, plus)]
    flat = [x if x.stride(-1) == 1 else x.contiguous() for x in flat]
    out = torch.empty(plus.shape, dtype=plus.dtype, device=plus.device)
    join_kernel[(rows, triton.cdiv(plus.shape[-1], 4))](
        flat[0], flat[1], flat[0] if chosen is None else chosen.contiguous(), *gains, weight, flat[2], out, eps,
        *(x.stride(0) for x in flat), plus.shape[-1],
        SIZE=size, N=4, COLUMNS=min(1024, triton.next_power_of_2(size)), CHOSEN=chosen is not None, num_warps=4,
    )  # fmt: skip
    return out
