"""The clock behind every decision that depends on time. Tests can replace it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_clock: Callable[[], float] = time.perf_counter


def now() -> float:
    """Seconds since some moment in the past."""
    return _clock()


@contextmanager
def using(clock: Callable[[], float]) -> Iterator[None]:
    """Let everything in this process go by another clock: for tests."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
