"""Matrix products of a head with few tokens on a CPU: in eight bits where this CPU is faster at them than at float32.

A draft may be rounded as one likes: its acceptance hardly notices eight bits, and exactness does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outrider.kernels import int8_linear
from outrider.runtime import cpu

Product = Callable[[Tensor], Tensor]
"""x [T, in] -> x @ weight.T [T, out], float32."""


def product_with(weight: Tensor) -> Product:
    """The quickest product with weight [out, in] on this CPU. By what it can do, never by a clock: q decides texts."""
    weight = weight.detach().to(torch.float32).contiguous()
    if cpu.facts().multiplies_nibbles and weight.shape[1] % 2 == 0:
        return nibbles(weight)
    if cpu.facts().vectors in ("AVX2", "AVX512"):
        kept = int8_linear.quantised(weight)
        return lambda x: int8_linear.product(x, kept)
    return lambda x: torch.nn.functional.linear(x, weight)


def nibbles(weight: Tensor) -> Product:
    """Eight bits as twice four: KleidiAI, on ARM, multiplies four bits at the speed of memory, and torch has no more.

    A whole number from -119 to 119 is 16 times one of four bits plus another. Both halves are rows of one product.
    """
    outputs, size = weight.shape
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 119
    whole = (weight / scales[:, None]).round_().to(torch.int8)  # in bytes throughout: this is at every start
    low = ((whole + 8) & 15) - 8  # -8..7
    halves = torch.cat([(whole - low) >> 4, low]) + 8  # as the kernel wants them: 0..15, two in a byte
    joined = (halves[:, 1::2] << 4 | halves[:, ::2]).view(torch.uint8)
    packed = torch.ops.aten._dyn_quant_pack_4bit_weight(
        joined, torch.cat([16 * scales, scales]), None, size, size, 2 * outputs
    )

    def product(x: Tensor) -> Tensor:
        both: Tensor = torch.ops.aten._dyn_quant_matmul_4bit(x, packed, size, size, 2 * outputs)
        return both[:, :outputs] + both[:, outputs:]

    return product
