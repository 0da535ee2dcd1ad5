"""Memory on the host that costs nothing until it is used."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

LINE = 64
"""Bytes of a line of memory, which what is read in vectors begins at."""

_SMALL = 1 << 16
"""Bytes below which pages of their own are not worth it."""


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On the host they take neither time nor memory until they are written to: the system's own empty pages."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _SMALL or sys.platform == "win32":
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(tuple(shape))
