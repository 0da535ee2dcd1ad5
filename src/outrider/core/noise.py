"""Randomness as a pure function: (row seed, absolute position, stream, vocabulary index) -> value.

Nothing depends on call order, batch layout or who asks. Rerun, replay, and "the same text whatever the
drafter" all follow from that. Only integer hashing and exactly rounded float operations are used, so the
same bits come out on every device. Formulas that take Any take tensors of torch and arrays of numpy alike: on a CPU
numpy's small operations take a fraction of the time.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.numpy_ops import largest, loaded_kernel, numbers, whole
from outrider.kernels.triton import available

_MASK32, _MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF

_MASK23 = (1 << 23) - 1

_FEW = 16
"""Positions up to which it pays to work keys out one by one."""

_MANY = 1024
"""Tokens of a vocabulary from which on it pays, on a CPU, to find the winner of a race without running all of it."""

_TINY = 1e-37
"""Below this float32 has fewer bits with every halving, and none below 1e-45."""

Array = NDArray[Any]


def _signed(value: int, bits: int) -> int:
    """Reinterpret an unsigned constant as the two's complement number torch's signed integers hold."""
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


def _mix64(x: Any) -> Any:
    """A full-avalanche mixing of int64 (the finaliser of splitmix64); products wrap around."""
    x = (x ^ ((x >> 30) & (_MASK32 << 2 | 3))) * _signed(0xBF58476D1CE4E5B9, 64)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB, 64)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _mixed(x: int) -> int:
    """``_mix64`` of one number: for a few of them arrays take longer than the arithmetic."""
    x &= _MASK64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK64
    return _signed(x ^ (x >> 31), 64)


def _mix32(counter: Any, low: Any, high: Any) -> Any:
    """Tokens' counters [V], and the two halves of a key, all int32 -> random bits, int32 [..., V]."""
    x = counter ^ low
    x ^= (x >> 16) & 0xFFFF
    x *= 0x21F0AAAD
    x ^= (x >> 15) & 0x1FFFF
    x += high
    x *= _signed(0xD35A2D97, 32)
    x ^= (x >> 15) & 0x1FFFF
    x *= 0x2C1B3C6D
    x ^= (x >> 16) & 0xFFFF
    return x


@lru_cache(maxsize=4096)
def _name_key(path: str) -> int:
    return _signed(int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big"), 64)


def row_seeds(seed: int | Sequence[int], prompts: Sequence[Sequence[int]]) -> list[int]:
    """The seeds of the rows of one call: a hash of the caller's seed, the prompt, and its place among equal prompts.

    So different prompts draw independent noise, a repeated prompt gets another sample each time, and a prompt draws
    the same noise alone as beside others. Of several seeds each belongs to its own prompt, whatever is repeated.
    ``prompts`` are what rows differ in: token ids, those of the source included.
    """
    places: Counter[bytes] = Counter()
    seeds = []
    for number, prompt in enumerate(prompts):
        tokens = np.asarray(prompt, dtype="<i8").tobytes()
        own, place = (seed, places[tokens]) if isinstance(seed, int) else (seed[number], 0)
        places[tokens] += 1
        digest = hashlib.blake2b(f"{own} {place} ".encode() + tokens, digest_size=8).digest()
        seeds.append(int.from_bytes(digest, "big", signed=True))
    return seeds


@cache  # for good: captured steps read it where it is
def vocabulary_counter(size: int, device: torch.device) -> Tensor:
    return counter_of(torch.arange(size, dtype=torch.int64, device=device))


def counter_of(tokens: Tensor) -> Tensor:
    """What races know tokens by: ids [N] -> int32 [N]."""
    return _low32(tokens * 0x9E3779B1)


def _low32(x: Tensor) -> Tensor:
    """The low 32 bits of an int64 as int32."""
    x = x & _MASK32
    return (x - ((x >> 31) << 32)).to(torch.int32)


def open_uniform(bits: Any, xp: Any) -> Any:
    """int32 random bits -> float32 in (0, 1), fine where races are won: near zero. ``xp`` is torch or numpy."""
    u = (xp.asarray(bits & 0x7FFFFFFF, dtype=xp.float32) + 0.5) * 2.0**-31
    return xp.clip(u, None, 1 - 2.0**-24)


def exponential(u: Any, xp: Any) -> Any:
    """Uniforms -> standard exponentials -log(1 - u), through the series of 2 atanh(s).

    Multiplication, addition, division and frexp are exactly rounded everywhere, library logarithms are not.
    """
    mantissa, exponent = xp.frexp(1 - u)
    small = u < 0.5
    top = xp.where(small, u, 1 - mantissa)
    s = top / xp.where(small, 2 - u, 1 + mantissa)
    s2 = s * s
    series = xp.full_like(s2, 1 / 13)
    for k in (11, 9, 7, 5, 3, 1):
        series = series * s2 + 1 / k
    shift = xp.where(small, xp.zeros_like(u), xp.asarray(exponent, dtype=xp.float32) * -math.log(2))
    return shift + 2 * s * series


def first_to_arrive(weights: Array, counter: Array, key: int) -> int:
    """Who wins a race: the first x with the largest weights[x] / arrival[x], for weights [V] of one position.

    An arrival -log(1 - u) lies between u and u / (1 - u). So weights / u is a bound that nobody passes, and the token
    with the highest reaches at least (1 - u) of it: whose bound is lower has lost. That leaves a handful of arrivals
    to be worked out.
    """
    low, high = (np.int32(_signed(half, 32)) for half in (key & _MASK32, (key >> 32) & _MASK32))
    bits = _mix32(counter, low, high)
    u = (bits & 0x7FFFFFFF).astype(np.float32)
    u += 0.5  # times 2**31
    bound = weights / u
    best = bound.argmax()
    reached = bound[best] * (1 - u[best] * 2.0**-31) * (1 - 1e-5)  # arrivals are rounded by far less than that
    if reached < _TINY:  # bounds this small are rounded by more: all are worked out
        reached = np.float32(0)
    rivals = np.flatnonzero(bound >= reached)
    if len(rivals) < 2:  # none at all: the weights are no numbers
        return int(best)
    return int(rivals[(weights[rivals] / exponential(open_uniform(bits[rivals], np), np)).argmax()])


@dataclass(frozen=True)
class Noise:
    """Independent streams of randomness for a batch of rows, addressed by name and position."""

    seeds: Tensor  # [B] int64
    path: str = ""

    keyed: ClassVar[bool] = True
    """Whether uniforms and races follow from ``keys`` alone."""

    def child(self, name: str) -> Noise:
        """Streams of their own under a name: what a drafter draws from when it must be independent."""
        return Noise(self.seeds, f"{self.path}/{name}")

    def of_rows(self, rows: Tensor) -> Noise:
        """Those of some rows [K], in this order."""
        return replace(self, seeds=self.seeds[rows])

    def of_run(self, at: Tensor) -> Noise:
        """Streams of one run alone, known by the position it starts from: no other run of the row starts there."""
        return Noise(self.keys("run", at[:, :1])[:, 0], f"{self.path}/run")

    @property
    def is_the_targets(self) -> bool:
        """Under no name: the target draws from these very streams, and a draft should draw what it would."""
        return self.path == ""

    def uniform(self, stream: str, at: Tensor) -> Tensor:
        """Uniforms in (0, 1) for absolute positions ``at`` [B, K] -> [B, K]: never 0, never 1.

        23 bits and a half are what float32 holds exactly. With one bit more the largest is rounded to 1.
        """
        keys = self.keys(stream, at)
        if at.device.type == "cpu" and at.numel() <= _FEW:
            return numbers(((keys.numpy() >> 41 & _MASK23) + 0.5) * 2.0**-23)
        return ((keys >> 41 & _MASK23).to(torch.float32) + 0.5) * 2.0**-23

    def race(self, stream: str, at: Tensor, size: int) -> Tensor:
        """Exponential arrival times for positions ``at`` [B, K] and every token -> [B, K, size]."""
        return self._race(stream, at, vocabulary_counter(size, at.device))

    def _race(self, stream: str, at: Tensor, counter: Tensor) -> Tensor:
        key = self.keys(stream, at)  # [B, K]
        if available.run_on(key.device):
            from outrider.kernels.triton.race import race

            return race(key, counter)
        low, high = _low32(key[..., None]), _low32(key[..., None] >> 32)
        return exponential(open_uniform(_mix32(counter, low, high), torch), torch)  # type: ignore[no-any-return]

    def winner(self, stream: str, at: Tensor, weights: Tensor, counter: Tensor | None = None) -> Tensor:
        """``draw(weights, race)``, to the bit, for weights [B, K, V] at positions [B, K] -> indices [B, K].

        With ``counter_of(tokens)`` the weights [B, K, N] are of those tokens, which race as they do among all.
        """
        size = weights.shape[-1]
        counter = vocabulary_counter(size, at.device) if counter is None else counter
        if available.run_on(at.device) and weights.dtype == torch.float32:
            from outrider.kernels.triton.race import race

            return largest(race(self.keys(stream, at), counter, weights))
        if at.device.type != "cpu" or weights.dtype != torch.float32 or size < _MANY:
            return largest(weights / self._race(stream, at, counter))
        keys, known = self.keys(stream, at).flatten().tolist(), counter.numpy()
        rows = weights.numpy().reshape(len(keys), -1)
        first = loaded_kernel("race", "first") or first_to_arrive
        return whole(np.array([first(*each) for each in zip(rows, repeat(known), keys)])).view(at.shape)

    def winner_on_host(self, stream: str, at: Tensor) -> Callable[[int, int, Array, Array], int]:
        """``winner`` at one of the positions [B, K] at a time, where a host has few tokens to choose among: takes row,
        number, float32 weights [N] and what the tokens are known by -> an index."""
        keys = self.keys(stream, at).tolist()
        first = loaded_kernel("race", "first") or first_to_arrive
        return lambda row, number, weights, counter: int(first(weights, counter, keys[row][number]))

    def keys(self, stream: str, at: Tensor) -> Tensor:
        """What noise follows from, at positions [B, K] -> int64 [B, K]."""
        name, step = _name_key(f"{self.path}:{stream}"), _signed(0x9E3779B97F4A7C15, 64)
        if available.run_on(at.device):
            from outrider.kernels.triton.race import keys

            return keys(self.seeds, at, name)
        if at.device.type == "cpu" and at.numel() <= _FEW and len(at) == len(self.seeds):
            rows = zip(self.seeds.tolist(), at.tolist(), strict=True)
            found = [[_mixed(_mixed(seed ^ name) + place * step) for place in places] for seed, places in rows]
            return whole(np.array(found, np.int64)).view(at.shape)
        if at.device.type == "cpu":
            rows = _mix64(self.seeds.numpy() ^ name)
            return whole(_mix64(rows[:, None] + at.numpy() * step))
        key: Tensor = _mix64(_mix64(self.seeds ^ name)[:, None] + at * step)
        return key


@dataclass(frozen=True)
class Silence(Noise):
    """The noise of temperature 0: every race is a tie, so the one token of a one-hot distribution wins.

    A point mass needs no randomness; making none saves a hash per vocabulary entry.
    """

    keyed: ClassVar[bool] = False

    def child(self, name: str) -> Noise:
        return self

    def of_run(self, at: Tensor) -> Noise:
        return self

    def uniform(self, stream: str, at: Tensor) -> Tensor:
        return torch.full(at.shape, 0.5, dtype=torch.float32, device=at.device)

    def race(self, stream: str, at: Tensor, size: int) -> Tensor:
        return torch.ones((*at.shape, 1), dtype=torch.float32, device=at.device)

    def winner(self, stream: str, at: Tensor, weights: Tensor, counter: Tensor | None = None) -> Tensor:
        return largest(weights)

    def winner_on_host(self, stream: str, at: Tensor) -> Callable[[int, int, Array, Array], int]:
        return lambda row, number, weights, counter: int(weights.argmax())
