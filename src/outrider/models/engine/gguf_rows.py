"""Rows of a matrix as GGUF files have them, taken apart into whole numbers and scales: nothing is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.kernels.numba.packed_formats import CODES, FORMATS, QuantisedRows

Array = np.ndarray[Any, Any]


def rows_of(name: str, raw: Array) -> QuantisedRows:
    """Some rows [R, bytes] in the GGUF format of this name."""
    form = FORMATS[CODES[name]]
    size = BLOCK_BYTES[name]
    blocks = raw.reshape(len(raw), -1, size)  # [R, B, size]
    if name == "Q6_K":
        return QuantisedRows(form, _six(blocks), _joined(blocks[..., 192:208]), factors=_half(blocks[..., 208:]))
    if form.blocks:
        scales, minima = _six_bits(blocks[..., 4:16])
        nibbles = _by_64(blocks[..., -128:])
        whole = nibbles if form.bits == 4 else nibbles | _above_by_64(blocks[..., 16:48])
        factors, minimum_factors = _half(blocks[..., :2]), _half(blocks[..., 2:4])
        return QuantisedRows(form, _joined(whole), scales, minima, factors, minimum_factors)
    if form.bits == 8:
        return QuantisedRows(form, _joined(blocks[..., 2:]).view(np.int8), _half(blocks[..., :2]))
    least = _half(blocks[..., 2:4]) if form.minimum else None
    whole = _nibbles(blocks[..., -16:])
    if form.bits == 5:
        whole = whole | np.unpackbits(np.ascontiguousarray(blocks[..., -20:-16]), axis=-1, bitorder="little") << 4
    return QuantisedRows(form, _joined(whole), _half(blocks[..., :2]), least)


BLOCK_BYTES = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210,
}  # fmt: skip
"""Bytes of a block of 32 inputs, or of 256 for K formats."""


def _joined(blocks: Array) -> Array:
    """[R, B, n] -> [R, B * n]."""
    return np.ascontiguousarray(blocks).reshape(len(blocks), -1)


def _half(blocks: Array) -> Array:
    """[R, B, 2] bytes -> [R, B] float16."""
    return np.ascontiguousarray(blocks).view(np.float16)[..., 0]


def _nibbles(packed: Array) -> Array:
    """Low halves of bytes, then high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _by_64(packed: Array) -> Array:
    """Each 32 bytes: low halves, then high ones -> [R, B, 256]."""
    split = packed.reshape(*packed.shape[:2], 4, 32)
    return _nibbles(split).reshape(*packed.shape[:2], 256)


def _above_by_64(plane: Array) -> Array:
    """The fifth bits: bit k of byte l is that of weight 32 k + l, as 16 -> [R, B, 256]."""
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    found = (plane[..., None, :] >> shifts & 1) << 4
    return found.reshape(*plane.shape[:2], 256)


def _six_bits(packed: Array) -> tuple[Array, Array]:
    """Scales and minima of six bits in 12 bytes -> [R, 8 B] each."""
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], -1)
    minima = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], -1)
    return _joined(scales), _joined(minima)


def _six(blocks: Array) -> Array:
    """Weights of six bits: by halves of a block, low bits in 64 bytes and those above in 32 -> [R, 256 B]."""
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 64)
    above = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32)
    high = np.concatenate([(above >> shift & 3) << 4 for shift in (0, 2, 4, 6)], -1)
    return _joined((_nibbles(low) | high).reshape(*blocks.shape[:2], 256))
