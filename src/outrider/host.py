"""What numpy does many times faster than torch on a CPU, where a step is made of small operations."""

from __future__ import annotations

import torch
from torch import Tensor


def largest(x: Tensor) -> Tensor:
    """The index of the first largest number (or the first NaN) along the last dimension: argmax.

    Over a vocabulary torch's own takes a dozen times as long on a CPU.
    """
    if x.device.type != "cpu" or x.dtype == torch.bfloat16:  # which numpy does not know
        return x.argmax(-1)
    return torch.from_numpy(x.numpy().argmax(-1, keepdims=True))[..., 0]
