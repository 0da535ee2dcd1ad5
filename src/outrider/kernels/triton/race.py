"""The random keys and the exponential race of ``core/noise.py`` as one kernel each, with the same bits.

Integer arithmetic wraps the same way everywhere; float operations are rounded one by one, never fused.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_LN2 = math.log(2)


@triton.jit
def _mix(x):
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687  # 0xBF58476D1CE4E5B9 as a signed number
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685  # 0x94D049BB133111EB
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit(do_not_specialize=["name"])
def keys_kernel(seeds, at, out, name, K: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    row = _mix(tl.load(seeds + line // K) ^ name)
    tl.store(out + line, _mix(row + tl.load(at + line) * -7046029254386353131))  # 0x9E3779B97F4A7C15


def keys(seeds: Tensor, at: Tensor, name: int) -> Tensor:
    """What the noise at positions at [B, K] follows from, for rows with these seeds [B] -> int64 [B, K]."""
    out = torch.empty(at.shape, dtype=torch.int64, device=at.device)
    if at.numel():
        keys_kernel[(at.numel(),)](seeds.contiguous(), at.contiguous(), out, name, K=at.shape[1], num_warps=1)
    return out


@triton.jit
def race_kernel(
    keys, counter, weights, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, LN2: tl.constexpr, WEIGHED: tl.constexpr
):
    line = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE
    key = tl.load(keys + line)
    x = tl.load(counter + place, mask=inside, other=0) ^ key.to(tl.int32)
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x21F0AAAD
    x = (x ^ ((x >> 15) & 0x1FFFF)) + (key >> 32).to(tl.int32)
    x = x * -749064809  # 0xD35A2D97 as a signed number
    x = (x ^ ((x >> 15) & 0x1FFFF)) * 0x2C1B3C6D
    x = x ^ ((x >> 16) & 0xFFFF)
    u = ((x & 0x7FFFFFFF).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2**-31
    u = tl.minimum(u, 0.9999999403953552)  # 1 - 2**-24
    rest = 1.0 - u
    bits = rest.to(tl.int32, bitcast=True)
    exponent = ((bits >> 23) & 0xFF) - 126
    mantissa = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)  # in [1/2, 1)
    small = u < 0.5
    top = tl.where(small, u, 1.0 - mantissa)
    s = tl.div_rn(top, tl.where(small, 2.0 - u, 1.0 + mantissa))
    s2 = s * s
    series = s2 * 0.0 + 0.07692307692307693
    series = series * s2 + 0.09090909090909091
    series = series * s2 + 0.1111111111111111
    series = series * s2 + 0.14285714285714285
    series = series * s2 + 0.2
    series = series * s2 + 0.3333333333333333
    series = series * s2 + 1.0
    shift = tl.where(small, 0.0, exponent.to(tl.float32) * -LN2)
    arrival = shift + 2.0 * s * series
    if WEIGHED:
        weight = tl.load(weights + line * SIZE + place, mask=inside, other=0.0)
        arrival = tl.div_rn(weight, arrival)
    tl.store(out + line * SIZE + place, arrival, mask=inside)


def race(keys: Tensor, counter: Tensor, weights: Tensor | None = None) -> Tensor:
    """keys [...] int64, counter [V] int32 -> arrival times [..., V], or weights [..., V] over them, all float32."""
    size = counter.shape[0]
    out = torch.empty((*keys.shape, size), dtype=torch.float32, device=counter.device)
    block = 1024
    race_kernel[(keys.numel(), triton.cdiv(size, block))](
        keys.contiguous(), counter, out if weights is None else weights.contiguous(), out,
        SIZE=size, BLOCK=block, LN2=_LN2, WEIGHED=weights is not None, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
