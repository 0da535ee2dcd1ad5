"""What numpy does many times faster than torch on a CPU, where a step is made of small operations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def whole(array: NDArray[Any], dtype: torch.dtype = torch.int64) -> Tensor:
    """An array of whole numbers as a tensor. Not by ``from_numpy``, which a step under watch takes for a constant."""
    given = torch.empty(array.shape, dtype=dtype)
    np.copyto(given.numpy(), array)
    return given


def numbers(array: NDArray[Any]) -> Tensor:
    """The same of an array that becomes float32."""
    return whole(array, torch.float32)


def largest(x: Tensor) -> Tensor:
    """The index of the first largest number (or the first NaN) along the last dimension: argmax.

    Over a vocabulary torch's own takes a dozen times as long on a CPU.
    """
    if x.device.type != "cpu" or x.dtype == torch.bfloat16:  # which numpy does not know
        return x.argmax(-1)
    return whole(np.asarray(x.numpy().argmax(-1)))


def largest_finite(x: Tensor) -> tuple[Tensor, Tensor]:
    """``largest`` of float32 or float64 numbers on a CPU, and one where that number is finite, else NaN, as ``x``."""
    flat = x.numpy().reshape(-1, x.shape[-1])
    best = flat.argmax(-1)
    weight = np.where(np.isfinite(flat[np.arange(len(flat)), best]), flat.dtype.type(1), flat.dtype.type(np.nan))
    return torch.from_numpy(best).view(x.shape[:-1]), torch.from_numpy(weight).view(x.shape[:-1])


def highest(x: Tensor) -> Tensor:
    """The largest number (NaN, if there is one) along the last dimension: amax, and on a CPU without its threads."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return x.amax(-1)
    found = torch.empty(x.shape[:-1], dtype=x.dtype)
    np.copyto(found.numpy(), x.numpy().max(-1))
    return found


def loaded_kernel(module: str, name: str) -> Callable[..., Any] | None:
    """A function compiled by numba, where its module is loaded anyway: numba is heavy to import.

    Only for those that give the bits of what they stand for: whether one is loaded must not show in a text.
    """
    compiled = sys.modules.get(f"outrider.kernels.numba.{module}")
    return None if compiled is None else vars(compiled).get(name)  # None while another thread imports it
