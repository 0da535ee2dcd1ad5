"""Linear layers with weights laid out once for the CPU's matrix kernels.

A run of W rows through an ordinary linear layer lays the weights out anew every time, which costs more than the
arithmetic. Packed once, nine rows cost little more than one: what makes fixed width affordable on a CPU.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


def pack(model: nn.Module, rows: int) -> int:
    """Pack every linear layer of a CPU model for runs of about ``rows`` rows -> how many were packed.

    For inference only: a packed layer no longer sees changes of its weight. Does nothing where this build of torch
    has no such kernels.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0
    count = 0
    for module in model.modules():
        joined = hasattr(module, "outrider_joined")  # see lean.py
        if type(module) is nn.Linear and module.weight.device.type == "cpu" and not joined:
            module.outrider_packed = packed(module.weight.detach(), rows)
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]
            count += 1
    return count


def packed(weight: Tensor, rows: int) -> Tensor:
    """A weight [out, in] laid out for products with about ``rows`` rows; as it is where torch has no such layout."""
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)  # type: ignore[no-any-return]
    except (RuntimeError, NotImplementedError, AttributeError):
        return weight


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer with a weight that ``packed`` gave."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]
    return nn.functional.linear(x, weight, bias)


def _forward(self: Any, x: Tensor) -> Tensor:
    return product(x, self.outrider_packed, self.bias)


def packed_layers(model: nn.Module) -> tuple[int, int]:
    """How many linear layers are packed, and how many there are."""
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    done = sum(hasattr(module, "outrider_packed") or hasattr(module, "outrider_joined") for module in linear)
    return done, len(linear)
