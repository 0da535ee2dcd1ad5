"""Which backend runs a head: chosen here and nowhere else, by device, rows, dtype and what the CPU can do.

Never by a clock: a draft's rounding decides which tokens are proposed, and two processes must propose the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch

from outrider.core import host_sync
from outrider.drafters.head.backends import triton_backend
from outrider.drafters.head.config import HeadConfig
from outrider.runtime import cpu

FEW_ROWS = 16
"""Rows up to which compiled drafts one after the other take less than one of torch for all: half of it at 6 to 12 rows
on two cores of a Neoverse-N1. Empty slots take nothing of the one, and as much as full ones of the other."""


@dataclass(frozen=True)
class BackendChoice:
    """A backend by its name in ``backends.BY_NAME``, and why it was chosen."""

    backend: str
    reason: str


def choose(config: HeadConfig, device: torch.device, rows: int, dtype: torch.dtype) -> BackendChoice:
    """For a head that drafts beside a target on this device, with logits of this dtype."""
    if device.type == "cpu" and rows <= FEW_ROWS and config.recurrent:
        alone = choose_for_one_row()
        if rows == 1 or (alone.backend == "numba" and host_sync.free(device)):
            return alone
    return choose_for_any_rows(config, device, dtype)


def choose_for_any_rows(config: HeadConfig, device: torch.device, dtype: torch.dtype) -> BackendChoice:
    """A backend whose rows can be copied and forked, and be as many as one likes."""
    refused = "its guesses are made side by side" if config.parallel else triton_backend.refusal(device, dtype)
    if refused is None:
        return BackendChoice("triton", f"Triton kernels run on {device.type} and agree with torch there")
    what = "several rows" if config.recurrent else f"a {config.kind} head"
    return BackendChoice("torch", f"{what} on {device.type}, and {refused}")


def choose_for_one_row() -> BackendChoice:
    """On a CPU torch takes longer for the small operations of a guess than for its products.

    Compiled for AVX2, three guesses took 4.7 ms where torch's products of eight-bit weights took 73.
    """
    if not cpu.facts().multiplies_bytes_by_vectors:
        return BackendChoice("numpy", "one row on a CPU whose compiled code has no products of bytes on vectors")
    error = numba_error()
    if error is not None:
        return BackendChoice("numpy", f"one row on a CPU, and {error}")
    return BackendChoice("numba", "few rows on a CPU with products of bytes on vectors: compiled, with packed weights")


@cache
def numba_error() -> str | None:
    """Why nothing can be compiled here; None where it can."""
    if find_spec("numba") is None:
        return "numba is not installed"
    try:
        from outrider.kernels.numba import packed_products  # noqa: F401
    except ImportError as error:  # beside another numpy than it wants, for one
        return f"numba cannot be imported ({' '.join(str(error).split())[:100]})"
    return None
