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
        if type(module) is nn.Linear and module.weight.device.type == "cpu":
            packed = _packed(module.weight.detach(), rows)
            if packed is None:
                return count
            module.outrider_packed = packed
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]
            count += 1
    return count


def _packed(weight: Tensor, rows: int) -> Tensor | None:
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)  # type: ignore[no-any-return]
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def _forward(self: Any, x: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, self.outrider_packed, self.bias, "none", [], "")  # type: ignore[no-any-return]


def packed_layers(model: nn.Module) -> tuple[int, int]:
    """How many linear layers are packed, and how many there are."""
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    return sum(hasattr(module, "outrider_packed") for module in linear), len(linear)
