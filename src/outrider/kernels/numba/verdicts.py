"""Judging the guesses of a row, compiled by numba: the bits of ``core/verification/maximal.py`` and ``core/draft.py``.

For drafts that know some tokens of a vocabulary: numpy and torch gather and scatter those anew at every look, and take
longer to be called than the arithmetic takes. What a drafter says it knows is looked at before memory is: where it is
no token, or q is too short, each function says so, and numpy is asked, which raises.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from outrider.kernels.numba.code_cache import STRICT, on_disk
from outrider.kernels.numba.race import race


@njit(**STRICT)
def _tokens(known: Any, q: Any, size: int) -> bool:
    """Whether all are tokens of a vocabulary of this size, and q is of as many."""
    outside, end = 0, np.uint64(size)
    for place in range(len(known)):
        outside += int(np.uint64(known[place]) >= end)  # unsigned: negative numbers are the largest
    return outside == 0 and len(q) >= len(known)


@njit(**STRICT)
def _subtract(left: Any, known: Any, q: Any) -> bool:
    nothing = np.float32(0)
    if not _tokens(known, q, len(left)):
        return False
    for place in range(len(known)):
        token = np.uint64(known[place])
        rest = left[token] - (q[place] if q[place] > nothing else nothing)
        left[token] = nothing if rest < nothing else rest
    return True


@on_disk
def subtract(left: Any, known: Any, q: Any) -> bool:
    """left [V] becomes max(0, p - q) at the tokens ``known`` [N], for q [N] of them; a q that is no number counts as
    zero. False: some of them are no tokens."""
    done: bool = _subtract(left, known, q)
    return done


@on_disk
def shared(p: Any, known: Any, q: Any) -> float:
    """sum min(p, q) over the tokens ``known`` [N], for p [V] and q [N] of them; -1: some of them are no tokens."""
    total = np.float32(0)
    if not _tokens(known, q, len(p)):
        return -1.0
    for place in range(len(known)):
        own, other = p[np.uint64(known[place])], q[place]
        total += own if own < other or own != own else other  # NaN of either goes through
    return float(total)


@njit(**STRICT)
def _kept(p: Any, tokens: Any, proposed: Any, q: Any, known: Any, keys: Any) -> int:
    """Guesses before the first that is rejected, as ``maximal.kept``; -1: some of them are no tokens."""
    n = 0
    while n < len(tokens) and proposed[n]:
        if not 0 <= tokens[n] < p.shape[1]:
            return -1
        place, share = np.searchsorted(known, tokens[n]), p[n, tokens[n]]
        chance = q[n, place] if place < len(known) and known[place] == tokens[n] else np.float32(0)
        r = np.float32((np.float64((keys[n] >> 41) & 0x7FFFFF) + 0.5) * 2.0**-23)
        if not (share > 0 and r * chance <= share):
            return n
        n += 1
    return n


@on_disk
def judge(p: Any, tokens: Any, proposed: Any, q: Any, known: Any, accepting: Any, drawing: Any, counters: Any) -> Any:
    """n guesses kept and the token behind them, for p [G + 1, V] and q [G, N] of the tokens ``known`` [N].

    ``accepting`` [G] and ``drawing`` [G + 1] are keys of the noise at every position; ``counters`` [V] are what tokens
    are known by there. -1 guesses: something of it is no token.
    """
    guesses = len(tokens)
    if q.shape[0] < guesses or q.shape[1] < len(known) or len(p) <= guesses or len(drawing) <= guesses:
        return -1, 0
    n, temp = _kept(p, tokens, proposed, q, known, accepting), np.empty(p.shape[1], np.float32)
    if n < 0:
        return -1, 0
    if n == guesses or not proposed[n]:
        return n, race(p[n], counters, drawing[n], temp)[1]
    left, nothing = p[n].copy(), True
    if not _subtract(left, known, q[n]):
        return -1, 0
    for j in range(len(left)):
        if not left[j] <= 0:  # nor is NaN
            nothing = False
            break
    if nothing:  # rounding left none of it: p is the right limit
        left += p[n]
    return n, race(left, counters, drawing[n], temp)[1]
