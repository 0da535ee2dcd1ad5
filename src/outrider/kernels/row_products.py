"""Matrix products on a GPU in which a row's bits do not depend on the rows beside it.

cuBLASLt adds the terms of every element in one chain, however many rows there are, as long as it may not split the
chain. With few rows it is slow at some matrices then: they get more rows than there are, of which nobody reads the
result. Whether bits are really alike is found out on the device at hand (``models/batch_invariance.py``).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_CANDIDATES = (1, 32, 64)
_TURNS = 20
_GAIN = 0.95
"""More rows must take at most this share of the time."""


def supported(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch can keep the library from splitting chains there."""
    return device.type == "cuda" and dtype in _DTYPES and torch.version.hip is None and can_be_set()


@cache
def can_be_set() -> bool:
    try:
        with no_split_k():
            return True
    except (AttributeError, TypeError):  # an older torch
        return False


class _Settings:
    """torch's settings for the whole process, and how many runs need theirs to be ours."""

    def __init__(self) -> None:
        self.lock, self.users = threading.Lock(), 0
        self.library: torch._C._BlasBackend | None = None
        self.before: dict[str, tuple[bool, bool]] = {}

    def enter(self) -> None:
        with self.lock:
            if self.users == 0:
                self._change()
            self.users += 1

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self._restore()

    def _change(self) -> None:
        products = torch.backends.cuda.matmul
        options = [f"allow_{name}_reduced_precision_reduction" for name in _DTYPES.values()]
        self.before = {name: (getattr(products, name), getattr(products, f"{name}_split_k")) for name in options}
        self.library = torch.backends.cuda.preferred_blas_library()
        try:
            for option in options:
                setattr(products, option, (False, False))
            with _without_a_warning():
                torch.backends.cuda.preferred_blas_library("cublaslt")
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        for option, value in self.before.items():
            setattr(torch.backends.cuda.matmul, option, value)
        with _without_a_warning():
            torch.backends.cuda.preferred_blas_library(self.library)


_settings = _Settings()


@contextmanager
def no_split_k() -> Iterator[None]:
    """Products inside have rows that do not depend on each other. Threads may be inside at the same time."""
    _settings.enter()
    try:
        yield
    finally:
        _settings.leave()


warned = False


@contextmanager
def _without_a_warning() -> Iterator[None]:
    """torch writes once, past Python's warnings, that the choice of a library is experimental."""
    global warned
    if warned:
        yield
        return
    warned = True
    if sys.stderr is not None:
        sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


_known: dict[tuple[torch.Size, torch.dtype, torch.device], int] = {}


def quickest_rows(weight: Tensor) -> int:
    """How many rows a product of few should be given at least: measured once for a size of matrix and a device."""
    if not supported(weight.device, weight.dtype):
        return 1
    key = (weight.shape, weight.dtype, weight.device)
    if key not in _known:
        with no_split_k(), torch.no_grad(), torch.cuda.device(weight.device):
            times = {rows: _microseconds(weight, rows) for rows in _CANDIDATES}
        best = min(times, key=times.__getitem__)
        _known[key] = best if times[best] < _GAIN * times[1] else 1
    return _known[key]


def _microseconds(weight: Tensor, rows: int) -> float:
    x = torch.zeros((rows, weight.shape[1]), dtype=weight.dtype, device=weight.device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for turn in range(_TURNS + 3):
        if turn == 3:
            begin.record()
        nn.functional.linear(x, weight)
    end.record()
    end.synchronize()
    return float(1000 * begin.elapsed_time(end) / _TURNS)
