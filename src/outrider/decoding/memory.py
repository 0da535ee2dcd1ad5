"""Memory that has run out, on a GPU or on the host: found in what torch and numpy raise, and told with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from outrider.errors import DeviceError

_OF_THE_HOST = ("DefaultCPUAllocator", "not enough memory", "can't allocate memory", "bad_alloc")
"""What torch's errors say where the host's memory is meant: they have no class of their own."""


def exhausted(error: BaseException) -> str | None:
    """Which memory an error says is full, "GPU memory" or "memory"; None where it is another error."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "GPU memory"
    told = isinstance(error, RuntimeError) and any(text in str(error) for text in _OF_THE_HOST)
    return "memory" if told or isinstance(error, MemoryError) else None


@contextmanager
def memory_for(what: str, remedy: str) -> Iterator[None]:
    """Turn an error for lack of memory into DeviceError: no memory for ``what``; ``remedy``."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (kind := exhausted(error)) is None:
            raise
        raise DeviceError(f"no {kind} for {what}; {remedy}") from error
