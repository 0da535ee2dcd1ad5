"""Matrices rounded to the K formats of GGUF files: blocks of 256 inputs with scales of scales.

The ``gguf`` package reads these formats and does not write them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK = 256
"""Inputs with one scale of scales."""


def q4_k(weight: Array) -> Array:
    """Rows [R, I] -> bytes: groups of 32 with a scale and a minimum of six bits each, times two numbers a block."""
    whole, header = _with_minima(weight, 15)
    return _rows(weight, [*header, _nibbles(whole)])


def q5_k(weight: Array) -> Array:
    """The same with five bits a weight: the fifth bits of a block's groups lie side by side in 32 bytes."""
    whole, header = _with_minima(weight, 31)
    fifth = sum((whole[:, group] >> 4) << group for group in range(8))
    return _rows(weight, [*header, fifth, _nibbles(whole & 15)])


def q6_k(weight: Array) -> Array:
    """Rows [R, I] -> bytes: groups of 16 with a scale of eight bits each, times a number a block."""
    x = weight.reshape(-1, 16, 16).astype(np.float32)
    d, scales = _in_steps(np.abs(x).max(-1) / 31, 127)
    step = (d * scales)[..., None]
    whole = (np.rint(x / np.where(step, step, 1)).clip(-32, 31) + 32).astype(np.uint8)
    whole[step[..., 0] == 0] = 32
    quarters = whole.reshape(-1, 2, 4, 32)  # two halves of a block, each in four quarters
    low = (quarters[:, :, :2] & 15) | (quarters[:, :, 2:] & 15) << 4
    high = sum(quarters[:, :, k] >> 4 << 2 * k for k in range(4))
    parts = [low.reshape(len(x), -1), high.reshape(len(x), -1), scales.astype(np.int8).view(np.uint8), _half(d)]
    return _rows(weight, parts)


def _with_minima(weight: Array, most: int) -> tuple[Array, list[Array]]:
    """Whole numbers up to ``most`` by block, group of 32 and input, and what stands before them: scales and minima."""
    x = weight.reshape(-1, 8, 32).astype(np.float32)  # [blocks, groups, 32]
    low = np.minimum(x.min(-1), 0)
    scales, minima = (x.max(-1).clip(0) - low) / most, -low
    d, scales = _in_steps(scales, 63)
    dmin, minima = _in_steps(minima, 63)
    step, least = d * scales, dmin * minima
    whole = np.rint((x + least[..., None]) / np.where(step, step, 1)[..., None]).clip(0, most).astype(np.uint8)
    whole[step == 0] = 0
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    packed = np.concatenate(
        [s[:, :4] | (s[:, 4:] >> 4 << 6), m[:, :4] | (m[:, 4:] >> 4 << 6), (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4], 1
    )
    return whole, [_half(d), _half(dmin), packed]


def _nibbles(whole: Array) -> Array:
    halves = whole.reshape(-1, 4, 2, 32)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(whole), -1)


def _in_steps(values: Array, most: int) -> tuple[Array, Array]:
    """Values [blocks, groups] as a float16 for each block times whole numbers up to ``most``."""
    unit = (values.max(-1, keepdims=True) / most).astype(np.float16).astype(np.float32)
    return unit, np.rint(values / np.where(unit, unit, 1)).clip(0, most) * (unit > 0)


def _half(numbers: Array) -> Array:
    return numbers.astype(np.float16).view(np.uint8)


def _rows(weight: Array, parts: list[Array]) -> Array:
    return np.concatenate(parts, 1).reshape(len(weight), -1)
