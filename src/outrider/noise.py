"""Randomness as a pure function: (row seed, absolute position, stream, vocabulary index) -> value.

Nothing depends on call order, batch layout or who asks. Rerun, replay, and "the same text whatever the
drafter" all follow from that. Only integer hashing and exactly rounded float operations are used, so the
same bits come out on every device.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from outrider import kernels

_MASK32 = 0xFFFFFFFF


def _signed(value: int, bits: int) -> int:
    """Reinterpret an unsigned constant as the two's complement number torch's signed integers hold."""
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


def _mix64(x: Tensor) -> Tensor:
    """A full-avalanche mixing of int64 (the finaliser of splitmix64); products wrap around."""
    x = (x ^ ((x >> 30) & (_MASK32 << 2 | 3))) * _signed(0xBF58476D1CE4E5B9, 64)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB, 64)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@lru_cache(maxsize=4096)
def _name_key(path: str) -> int:
    return _signed(int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big"), 64)


@lru_cache(maxsize=16)
def _vocabulary_counter(size: int, device: torch.device) -> Tensor:
    counter = torch.arange(size, dtype=torch.int64, device=device) * 0x9E3779B1
    return _low32(counter)


def _low32(x: Tensor) -> Tensor:
    """The low 32 bits of an int64 as int32."""
    x = x & _MASK32
    return (x - ((x >> 31) << 32)).to(torch.int32)


def _exponential(bits: Tensor) -> Tensor:
    """int32 random bits -> standard exponentials, accurate where it matters: near zero, where races are won.

    Computes -log(1 - u) from 31 bits through the series of 2 atanh(s). Multiplication, addition, division
    and frexp are exactly rounded everywhere, library logarithms are not.
    """
    u = ((bits & 0x7FFFFFFF).to(torch.float32) + 0.5) * 2.0**-31
    u = u.clamp(max=1 - 2.0**-24)
    mantissa, exponent = torch.frexp(1 - u)
    small = u < 0.5
    top = torch.where(small, u, 1 - mantissa)
    s = top / torch.where(small, 2 - u, 1 + mantissa)
    s2 = s * s
    series = torch.full_like(s2, 1 / 13)
    for k in (11, 9, 7, 5, 3, 1):
        series = series * s2 + 1 / k
    shift = torch.where(small, torch.zeros_like(u), exponent.to(torch.float32) * -math.log(2))
    return shift + 2 * s * series


@dataclass(frozen=True)
class Noise:
    """Independent streams of randomness for a batch of rows, addressed by name and position."""

    seeds: Tensor  # [B] int64
    path: str = ""

    def child(self, name: str) -> Noise:
        """Streams of their own under a name: what a drafter draws from when it must be independent."""
        return Noise(self.seeds, f"{self.path}/{name}")

    def of_run(self, at: Tensor) -> Noise:
        """Streams of one run alone, known by the position it starts from: no other run of the row starts there."""
        return Noise(self._key("run", at[:, :1])[:, 0], f"{self.path}/run")

    @property
    def is_the_targets(self) -> bool:
        """Under no name: the target draws from these very streams, and a draft should draw what it would."""
        return self.path == ""

    def uniform(self, stream: str, at: Tensor) -> Tensor:
        """Uniforms in (0, 1) for absolute positions ``at`` [B, K] -> [B, K]."""
        bits = (self._key(stream, at) >> 40) & ((1 << 24) - 1)
        return (bits.to(torch.float32) + 0.5) * 2.0**-24

    def race(self, stream: str, at: Tensor, size: int) -> Tensor:
        """Exponential arrival times for positions ``at`` [B, K] and every token -> [B, K, size]."""
        key = self._key(stream, at)[..., None]  # [B, K, 1]
        low, high = _low32(key), _low32(key >> 32)
        counter = _vocabulary_counter(size, key.device)
        if kernels.run_on(key.device):
            from outrider.kernels.race import race

            return race(low[..., 0], high[..., 0], counter)
        x = counter ^ low
        x = (x ^ ((x >> 16) & 0xFFFF)) * 0x21F0AAAD
        x = (x ^ ((x >> 15) & 0x1FFFF)) + high
        x = x * _signed(0xD35A2D97, 32)
        x = (x ^ ((x >> 15) & 0x1FFFF)) * 0x2C1B3C6D
        return _exponential(x ^ ((x >> 16) & 0xFFFF))

    def _key(self, stream: str, at: Tensor) -> Tensor:
        rows = _mix64(self.seeds ^ _name_key(f"{self.path}:{stream}"))  # [B]
        return _mix64(rows[:, None] + at * _signed(0x9E3779B97F4A7C15, 64))


@dataclass(frozen=True)
class Silence(Noise):
    """The noise of temperature 0: every race is a tie, so the one token of a one-hot distribution wins.

    A point mass needs no randomness; making none saves a hash per vocabulary entry.
    """

    def child(self, name: str) -> Noise:
        return self

    def of_run(self, at: Tensor) -> Noise:
        return self

    def uniform(self, stream: str, at: Tensor) -> Tensor:
        return torch.full(at.shape, 0.5, dtype=torch.float32, device=at.device)

    def race(self, stream: str, at: Tensor, size: int) -> Tensor:
        return torch.ones((*at.shape, 1), dtype=torch.float32, device=at.device)
