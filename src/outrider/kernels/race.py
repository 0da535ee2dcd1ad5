"""The exponential race of ``noise.py`` in one kernel, with the same bits.

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
def _race(low, high, counter, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, LN2: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE
    x = tl.load(counter + place, mask=inside, other=0) ^ tl.load(low + line)
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x21F0AAAD
    x = (x ^ ((x >> 15) & 0x1FFFF)) + tl.load(high + line)
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
    tl.store(out + line * SIZE + place, shift + 2.0 * s * series, mask=inside)


def race(low: Tensor, high: Tensor, counter: Tensor) -> Tensor:
    """low, high [...] int32 halves of the keys, counter [V] int32 -> arrival times [..., V]."""
    size = counter.shape[0]
    out = torch.empty((*low.shape, size), dtype=torch.float32, device=counter.device)
    block = 1024
    _race[(low.numel(), triton.cdiv(size, block))](
        low.contiguous(), high.contiguous(), counter, out, SIZE=size, BLOCK=block, LN2=_LN2, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out
