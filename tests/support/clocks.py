"""Clocks that tests own: no test goes by the time that really passes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count


def ticking(moment: Callable[[int], float] = float) -> Callable[[], float]:
    """A clock that is at ``moment(n)`` when it is read for the n-th time: by default a second later every time."""
    readings = count()
    return lambda: float(moment(next(readings)))
