"""Linear layers whose weights are kept as whole numbers of eight bits, one scale for each row of the weight.

Weights take a quarter of float32's memory, and a kernel that reads them as they are takes a quarter of the bandwidth.
Activations stay as they are, so a row of a result depends on nothing but that row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST = 127  # not -128: the range is as wide below zero as above it


@dataclass(frozen=True)
class Int8Weight:
    """A weight [out, in] as ``values * scales[:, None]``."""

    values: Tensor  # [out, in] int8
    scales: Tensor  # [out], in the dtype of the activations

    def to_float(self) -> Tensor:
        return self.values.to(self.scales.dtype) * self.scales[:, None]


def quantised(weight: Tensor, dtype: torch.dtype | None = None) -> Int8Weight:
    """The nearest 8-bit weight; ``dtype`` is that of the activations it will meet, the weight's own by default."""
    read = weight.detach().float()
    scales = read.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
    scales = scales.to(dtype or weight.dtype)  # rounded before it is used: then values fit the scale there is
    values = (read / scales.float()[:, None]).round().clamp(-_LARGEST, _LARGEST)
    return Int8Weight(values.to(torch.int8), scales)


def product(x: Tensor, weight: Int8Weight, bias: Tensor | None = None) -> Tensor:
    """x [..., in] -> [..., out] in the dtype of x, which must be that of the scales."""
    rows = x.reshape(-1, x.shape[-1])
    found = torch._weight_int8pack_mm(rows.contiguous(), weight.values, weight.scales)
    found = found.view(*x.shape[:-1], -1)
    return found if bias is None else found + bias
