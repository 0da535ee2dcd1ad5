"""A matrix product compiled by numba, as its weights were prepared: in float32, float16, by AMX, or of packed weights.

Which of them a model needs is known by the type of ``LlamaWeights.half`` when code is compiled for it: False or True
for weights of bfloat16, multiplied in float32, and of float16, multiplied as they are; ``SHAPES`` for weights of
bfloat16 multiplied by AMX; ``FLOAT32`` for weights of float32; the address of ``packed_product`` for packed ones. So
nobody waits for code that is not run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from outrider.kernels.numba.amx_products import (
    Registers,
    amx_product,
    begin_products,
    panel_size,
    part_size,
    release,
    split,
)
from outrider.kernels.numba.arrays import aligned
from outrider.kernels.numba.code_cache import OPTIONS
from outrider.kernels.numba.float16_products import CHAIN, half_product, narrow
from outrider.kernels.numba.layer_math import float32_product, product
from outrider.kernels.numba.packed_inputs import given_size, shorten
from outrider.kernels.numba.packed_products import call_product
from outrider.kernels.numba.tiles import PANEL, compiled

FLOAT32 = 4.0
"""``half`` of weights in float32: bytes of each. Its type is what counts."""


class ProductInput(NamedTuple):
    """Inputs of a product: x, and where products are computed in float16 a thread's own copy of it in that."""

    half: bool | float
    x: np.ndarray[Any, Any]  # [rows, inputs]
    bits: np.ndarray[Any, Any]  # [rows, inputs up to whole chains]
    factors: np.ndarray[Any, Any]  # [rows]


class PackedInput(NamedTuple):
    """Inputs of a product with packed weights: x, and a thread's own copy of it in eight bits."""

    product: int  # address
    x: np.ndarray[Any, Any]  # [rows, inputs]
    given: np.ndarray[Any, Any]  # [rows, ``given_size``] bytes
    registers: np.ndarray[Any, Any]  # [1]: what the thread's registers of AMX are set to


class AmxInput(NamedTuple):
    """Inputs of a product by AMX: x, and a thread's own copy of it in parts of bfloat16."""

    x: np.ndarray[Any, Any]  # [rows, inputs]
    parts: np.ndarray[Any, Any]  # [rows, ``part_size``]
    registers: Registers


class FloatRoom(NamedTuple):
    """Room for a thread's own copy of inputs in float16."""

    bits: np.ndarray[Any, Any]
    factors: np.ndarray[Any, Any]


class PackedRoom(NamedTuple):
    """Room for a thread's own copy of inputs in eight bits, and what its registers are set to."""

    given: np.ndarray[Any, Any]
    registers: np.ndarray[Any, Any]


class AmxRoom(NamedTuple):
    """Room for a thread's own copy of inputs in parts, and what its registers are set to."""

    parts: np.ndarray[Any, Any]
    registers: Registers


Half = bool | int | float | np.ndarray[Any, Any]
"""``LlamaWeights.half``: what weights are and products are computed in."""

Given = ProductInput | PackedInput | AmxInput
"""Inputs of a product."""


@compiled
def chained(inputs: int) -> int:
    """Inputs up to whole chains."""
    return (inputs + CHAIN - 1) // CHAIN * CHAIN


def input_room(half: Half, rows: int, inputs: int) -> FloatRoom | AmxRoom | PackedRoom:
    """Room for a thread's own copy of so many rows."""
    raise NotImplementedError  # in compiled code only, as all of these


@overload(input_room, jit_options=OPTIONS, strict=False)
def _input_room(half: Any, rows: Any, inputs: Any) -> Any:
    def floating(half: bool, rows: int, inputs: int) -> FloatRoom:
        count = rows * chained(inputs) if half else 0
        return FloatRoom(np.empty(count, np.uint16), np.empty(rows, np.float32))

    def by_amx(half: Any, rows: int, inputs: int) -> AmxRoom:
        return AmxRoom(aligned(rows * part_size(inputs), np.uint16), Registers(half, np.zeros(1, np.int64)))

    if isinstance(half, types.Boolean):
        return floating
    if isinstance(half, types.Float):
        return lambda half, rows, inputs: FloatRoom(np.empty(0, np.uint16), np.empty(0, np.float32))
    if isinstance(half, types.Array):
        return by_amx
    return lambda half, rows, inputs: PackedRoom(aligned(rows * given_size(inputs), np.uint8), np.zeros(1, np.int64))


def product_input(half: Half, x: Any, room: Any) -> Given:
    """What products with x read; ``room`` is for its copy."""
    raise NotImplementedError


@overload(product_input, jit_options=OPTIONS, strict=False)
def _product_input(half: Any, x: Any, room: Any) -> Any:
    def floating(half: bool, x: Any, room: FloatRoom) -> ProductInput:
        rows, inputs = x.shape[0], chained(x.shape[1]) if half else 0
        return ProductInput(half, x, room.bits[: rows * inputs].reshape((rows, inputs)), room.factors)

    def packed(half: int, x: Any, room: PackedRoom) -> PackedInput:
        rows, size = x.shape[0], given_size(x.shape[1])
        return PackedInput(half, x, room.given[: rows * size].reshape((rows, size)), room.registers)

    def full(half: float, x: Any, room: FloatRoom) -> ProductInput:
        return ProductInput(half, x, room.bits.reshape((x.shape[0], 0)), room.factors)

    def by_amx(half: Any, x: Any, room: AmxRoom) -> AmxInput:
        rows, numbers = x.shape[0], part_size(x.shape[1])
        return AmxInput(x, room.parts[: rows * numbers].reshape((rows, numbers)), room.registers)

    if isinstance(half, types.Float):
        return full
    if isinstance(half, types.Array):
        return by_amx
    return floating if isinstance(half, types.Boolean) else packed


def some_rows(given: Given, row: int, end: int) -> Given:
    """Some rows of a product's inputs."""
    raise NotImplementedError


@overload(some_rows, jit_options=OPTIONS, strict=False)
def _some_rows(given: Any, row: Any, end: Any) -> Any:
    def floating(given: ProductInput, row: int, end: int) -> ProductInput:
        return ProductInput(given.half, given.x[row:end], given.bits[row:end], given.factors[row:end])

    def packed(given: PackedInput, row: int, end: int) -> PackedInput:
        return PackedInput(given.product, given.x[row:end], given.given[row:end], given.registers)

    def by_amx(given: AmxInput, row: int, end: int) -> AmxInput:
        return AmxInput(given.x[row:end], given.parts[row:end], given.registers)

    if given.instance_class is AmxInput:
        return by_amx
    return floating if given.instance_class is ProductInput else packed


def _of_float32(given: Any) -> bool:
    """Whether inputs of this type are for weights in float32."""
    return isinstance(given.types[given.fields.index("half")], types.Float)


def convert_input(given: Given, powers: Any) -> None:
    """x has been written: bring it into the form that products with a matrix of these powers read.

    Of packed weights the first power is the number of inputs with one scale.
    """
    raise NotImplementedError


@overload(convert_input, jit_options=OPTIONS, strict=False)
def _convert_input(given: Any, powers: Any) -> Any:
    def floating(given: ProductInput, powers: Any) -> None:
        if given.half:
            narrow(given.x, powers[0], powers[1], given.bits, given.factors)

    def full(given: ProductInput, powers: Any) -> None: ...

    def packed(given: PackedInput, powers: Any) -> None:
        given.registers[0] = 0  # attention may have set them
        shorten(given.x, powers[0], given.given)

    def by_amx(given: AmxInput, powers: Any) -> None:
        begin_products(given.registers)
        split(given.x, given.parts)

    if given.instance_class is AmxInput:
        return by_amx
    if given.instance_class is PackedInput:
        return packed
    return full if _of_float32(given) else floating


def multiply(given: Given, weights: int, first: int, panels: int, out: Any) -> None:
    """Times some panels of a matrix, from the first on -> out [rows, 16 * panels]."""
    raise NotImplementedError


@overload(multiply, jit_options=OPTIONS, strict=False)
def _multiply(given: Any, weights: Any, first: Any, panels: Any, out: Any) -> Any:
    def floating(given: ProductInput, weights: int, first: int, panels: int, out: Any) -> None:
        if given.half:
            inputs = given.bits.shape[1]
            at = weights + 2 * PANEL * inputs * first
            half_product(at, given.bits, given.factors, inputs, out.ctypes.data, out.shape[1], panels)
        else:
            rows, inputs = given.x.shape
            at = weights + 2 * PANEL * inputs * first
            product(at, given.x.ctypes.data, rows, inputs, out.ctypes.data, out.shape[1], panels)

    def full(given: ProductInput, weights: int, first: int, panels: int, out: Any) -> None:
        rows, inputs = given.x.shape
        at = weights + 4 * PANEL * inputs * first
        float32_product(at, given.x.ctypes.data, rows, inputs, out.ctypes.data, out.shape[1], panels)

    def packed(given: PackedInput, weights: int, first: int, panels: int, out: Any) -> None:
        rows, inputs = given.x.shape
        x, short, registers = given.x.ctypes.data, given.given.ctypes.data, given.registers.ctypes.data
        to, stride = out.ctypes.data, out.shape[1]
        call_product(given.product, weights, first, panels, rows, inputs, x, short, to, stride, registers)

    def by_amx(given: AmxInput, weights: int, first: int, panels: int, out: Any) -> None:
        at = weights + panel_size(given.x.shape[1]) * first
        amx_product(at, given.parts, given.registers, out.ctypes.data, out.shape[1], panels)

    if given.instance_class is AmxInput:
        return by_amx
    if given.instance_class is PackedInput:
        return packed
    return full if _of_float32(given) else floating


def end_products(given: Given) -> None:
    """A thread has done the products of a run: AMX's registers are released."""
    raise NotImplementedError


@overload(end_products, jit_options=OPTIONS, strict=False)
def _end_products(given: Any) -> Any:
    if given.instance_class in (AmxInput, PackedInput):
        return lambda given: release()
    return lambda given: None
