"""A thread pool whose threads all run the same compiled function at once, for the numba kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from outrider.kernels.numba.layer_math import STRIDE

Call = tuple[Callable[..., Any], tuple[Any, ...], object]


class ThreadTeam:
    """Threads that run one function together, as in OpenMP. The caller is one; the others sleep until called."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        for _ in range(self.threads - 1):
            Thread(target=_help, args=(self._calls,), daemon=True, name="outrider-worker").start()

    def run(self, function: Callable[..., Any], *arguments: Any, holding: object) -> Any:
        """Call it on every thread -> what the caller's own call gives, which ends when all work is done.

        ``holding``: what the arguments' addresses point into. Should the caller be interrupted, the others go on.
        """
        if self._process != os.getpid():  # a fork has none of the threads
            self._start()
        for _ in range(self.threads - 1):
            self._calls.put((function, arguments, holding))
        return function(*arguments)

    def __del__(self) -> None:
        for _ in range(self.threads - 1):
            self._calls.put(None)


def _help(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        # What is wrong with a call its caller sees as well; a thread less would go unnoticed.
        with suppress(Exception):
            call[0](*call[1])
        del call  # what it reads must not stay until the next


def zeros(pieces: int) -> np.ndarray[Any, Any]:
    """Counters for pieces of work. An array, so that a thread that comes late still finds them."""
    return np.zeros(STRIDE // 8 * pieces, np.int64)
