"""A matrix product compiled by numba, in float32 or float16 as its weights were prepared."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from outrider.kernels.numba.float16_products import CHAIN, half_product, narrow
from outrider.kernels.numba.layer_math import product
from outrider.kernels.numba.tiles import PANEL, compiled


class ProductInput(NamedTuple):
    """Inputs of a product: x, and where products are computed in float16 a thread's own copy of it in that."""

    half: bool
    x: np.ndarray[Any, Any]  # [rows, inputs]
    bits: np.ndarray[Any, Any]  # [rows, inputs up to whole chains]
    factors: np.ndarray[Any, Any]  # [rows]


@compiled
def chained(inputs: int) -> int:
    """Inputs up to whole chains."""
    return (inputs + CHAIN - 1) // CHAIN * CHAIN


@compiled
def product_input(half: bool, x: Any, room: Any, factors: Any) -> ProductInput:
    """What products with x read; ``room`` is for its copy."""
    rows, inputs = x.shape[0], chained(x.shape[1]) if half else 0
    return ProductInput(half, x, room[: rows * inputs].reshape((rows, inputs)), factors)


@compiled
def convert_input(given: ProductInput, powers: Any) -> None:
    """x has been written: bring it into the form that products with a matrix of these powers read."""
    if given.half:
        narrow(given.x, powers[0], powers[1], given.bits, given.factors)


@compiled
def multiply(given: ProductInput, weights: int, first: int, panels: int, out: Any) -> None:
    """Times some panels of a matrix, from the first on -> out [rows, 16 * panels]."""
    if given.half:
        inputs = given.bits.shape[1]
        at = weights + 2 * PANEL * inputs * first
        half_product(at, given.bits, given.factors, inputs, out.ctypes.data, out.shape[1], panels)
    else:
        rows, inputs = given.x.shape
        at = weights + 2 * PANEL * inputs * first
        product(at, given.x.ctypes.data, rows, inputs, out.ctypes.data, out.shape[1], panels)
