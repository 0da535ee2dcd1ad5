"""Where a key or value lies in a KV cache (layouts: ``kv_panels.py``), and how it is written, compiled by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.kernels.numba.kv_panels import multiplied_by_amx, multiplied_in_half
from outrider.kernels.numba.tiles import FLOAT, PANEL, WORD, compiled, float_of_bits


@compiled
def key_place(stored: Any, lines: int, place: int, line: int) -> int:
    """Where in the keys of a head one number of the key at a position is."""
    block, column = place // PANEL * PANEL * lines, place % PANEL
    if multiplied_by_amx(stored):
        return block + line // 2 * 2 * PANEL + 2 * column + line % 2
    return block + line * PANEL + column


@compiled
def value_place(stored: Any, padded: int, place: int, column: int) -> int:
    """The same for the values of a head, ``padded`` numbers for each position."""
    if multiplied_by_amx(stored):
        return place // 2 * 2 * padded + 2 * column + place % 2
    return place * padded + column


@intrinsic
def largest(typing: Any, stored: Any) -> Any:
    """The largest number that is written to a cache; of float16 such that 32 weights of 1 / 32 times it are finite."""
    most = {types.float32: 3.4028234663852886e38, types.uint16: 3.3895313892515355e38, types.int16: 32768.0}

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(FLOAT, most[signature.args[0].dtype])

    return types.float32(stored), generate


@intrinsic
def _store(typing: Any, stored: Any, address: Any, value: Any) -> Any:
    """Round a finite float32 to the format of the cache, to nearest, ties to even, and write it to an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, address, value = args
        if signature.args[0].dtype == types.int16:
            value = builder.fptrunc(value, ir.HalfType())
        elif signature.args[0].dtype == types.uint16:
            bits = builder.bitcast(value, WORD)
            odd = builder.and_(builder.lshr(bits, ir.Constant(WORD, 16)), ir.Constant(WORD, 1))
            up = builder.add(builder.add(bits, ir.Constant(WORD, 0x7FFF)), odd)
            value = builder.trunc(builder.lshr(up, ir.Constant(WORD, 16)), ir.IntType(16))
        builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
        return context.get_dummy_value()

    return types.void(stored, types.int64, types.float32), generate


@compiled
def _limited(value: float, most: float) -> float:
    """What is beyond the range, infinite or NaN becomes the largest number."""
    if abs(value) <= most:
        return value
    return most if value > 0 else -most


@compiled
def write_value(stored: Any, values: int, padded: int, place: int, line: Any, count: int) -> None:
    """A line of values -> its position in the cache of a head, which begins at an address.

    All values of a cache are finite: so a weight of zero for what a query may not see gives zero.
    """
    most = largest(stored)
    for j in range(count):
        _store(stored, values + stored.itemsize * value_place(stored, padded, place, j), _limited(line[j], most))


@compiled
def write_key(stored: Any, keys: int, lines: int, place: int, line: Any, count: int) -> None:
    """The same for a key."""
    power, most, size = np.int32(0), largest(stored), stored.itemsize
    if multiplied_in_half(stored):
        highest, most = np.float32(0), np.float32(1)
        for j in range(count):
            highest = max(highest, abs(line[j]))
        while power < 15 and float_of_bits((np.int32(127) + power) << np.int32(23)) <= highest:
            power += np.int32(1)
        scale = float_of_bits((np.int32(127) + power) << np.int32(23))
        _store(stored, keys + size * key_place(stored, lines, place, lines - 1), scale)
    share = float_of_bits((np.int32(127) - power) << np.int32(23))
    for j in range(count):
        _store(stored, keys + size * key_place(stored, lines, place, j), _limited(line[j] * share, most))
