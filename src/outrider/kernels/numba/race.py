"""Sampling by an exponential race, compiled by numba: the bits of ``core/noise.py``, in parts of the vocabulary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from outrider.kernels.numba.code_cache import STRICT, compiling, on_disk
from outrider.kernels.numba.layer_math import exp
from outrider.kernels.numba.tiles import compiled

_AHEAD = 1 - 1e-5
"""Arrivals are rounded by far less than that."""

_TINY = 1e-37
"""``noise._TINY``: bounds below this are rounded by more."""


@compiled
def _mixed(counter: Any, low: Any, high: Any) -> Any:
    """``noise._mix32``."""
    x = np.uint32(counter ^ low)
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(0x21F0AAAD))
    x ^= x >> np.uint32(15)
    x = np.uint32(x + high)
    x = np.uint32(x * np.uint32(0xD35A2D97))
    x ^= x >> np.uint32(15)
    x = np.uint32(x * np.uint32(0x2C1B3C6D))
    return np.uint32(x ^ (x >> np.uint32(16)))


@compiled
def shares(logits: Any, most: float, rate: float, total: float, out: Any) -> None:
    """Probabilities at temperature 1 / rate, where the largest logit is ``most`` and all weigh ``total`` beside it."""
    whole = np.float32(1 / total)
    for j in range(len(logits)):
        out[j] = exp((logits[j] - np.float32(most)) * np.float32(rate)) * whole


@njit(**STRICT)  # rounded step by step, as everywhere else
def exponential(weight: Any, bits: Any) -> Any:
    """A weight over its arrival, as ``noise.exponential`` has it."""
    one, half = np.float32(1), np.float32(0.5)
    u = min((np.float32(bits) + half) * np.float32(2.0**-31), np.float32(1 - 2.0**-24))
    top, below, shift = u, np.float32(2) - u, np.float32(0)
    if u >= half:
        mantissa, exponent = math.frexp(one - u)
        top, below = one - np.float32(mantissa), one + np.float32(mantissa)
        shift = np.float32(exponent) * np.float32(-math.log(2))
    s = top / below
    square = s * s
    series = np.float32(1 / 13)
    series = series * square + np.float32(1 / 11)
    series = series * square + np.float32(1 / 9)
    series = series * square + np.float32(1 / 7)
    series = series * square + np.float32(1 / 5)
    series = series * square + np.float32(1 / 3)
    series = series * square + one
    return weight / (shift + np.float32(2) * s * series)


@compiled
def race(weights: Any, counters: Any, key: int, temp: Any) -> Any:
    """The winner of the race among some tokens -> weight over arrival time, and the index among these tokens.

    An arrival time -log(1 - u) lies between u and u / (1 - u), so weight / u is an upper bound, and the token with the
    highest bound reaches at least (1 - u) of it: few arrival times have to be computed exactly.
    """
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32((key >> 32) & 0xFFFFFFFF)
    for j in range(len(weights)):
        bits = _mixed(np.uint32(counters[j]), low, high) & np.uint32(0x7FFFFFFF)
        temp[j] = weights[j] / (np.float32(bits) + np.float32(0.5))
    reached, best, place = np.float32(0), np.float32(-1), 0
    for j in range(len(weights)):
        if not temp[j] < reached:
            if temp[j] != temp[j]:  # NaN is the largest, and the first one wins
                return temp[j], j
            bits = _mixed(np.uint32(counters[j]), low, high) & np.uint32(0x7FFFFFFF)
            sure = np.float32(temp[j] * (1 - bits * 2.0**-31) * _AHEAD)
            if sure >= np.float32(_TINY):  # smaller ones are rounded by more than the margin
                reached = max(reached, sure)
            found = exponential(weights[j], bits)
            if found > best:
                best, place = found, j
    return best, place


@on_disk
def first(weights: Any, counters: Any, key: int) -> int:
    """The winner of the race among all tokens."""
    place: int = race(weights, counters, key, np.empty(len(weights), np.float32))[1]
    return place


def make_ready() -> None:
    """Compile now, rather than at the first draw, what ``core/noise.py`` uses where this module is loaded."""
    with compiling("first", "sampling", seconds=5):
        first(np.ones(2, np.float32), np.zeros(2, np.int32), 1)
