"""Products of a few rows with panels as the KV cache stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from outrider.kernels.numba import kv_panels
from outrider.kernels.numba.float_tiles import multiply_panels
from outrider.kernels.numba.tiles import PANEL
from outrider.runtime import cpu

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

INPUTS, PANELS, ROWS = 48, 7, 14
STORED = [
    "float32",
    "bfloat16",
    pytest.param("float16", marks=pytest.mark.skipif(not kv_panels.HAS_FLOAT16, reason="this CPU has no float16")),
]


def numbers(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Panels [PANELS, INPUTS, PANEL] of numbers that all formats hold -> in float32, and as the cache has them."""
    whole = np.random.default_rng(0).integers(-120, 120, (PANELS, INPUTS, PANEL)).astype(np.float32)
    kind = kv_panels.STORED[name]
    if name == "float32":
        return whole, whole
    if name == "float16":
        return whole, whole.astype(np.float16).view(kind)
    return whole, (whole.view(np.uint32) >> 16).astype(np.uint16).view(kind)


def product(stored: np.ndarray[Any, Any], x: np.ndarray[Any, Any], first: int, panels: int) -> np.ndarray[Any, Any]:
    out = np.full((len(x) + 1, PANEL * panels + 3), np.nan, np.float32)
    line = stored.itemsize * PANEL
    multiply_panels(
        stored.ravel(), stored.ctypes.data + line * INPUTS * first, line, line * INPUTS, panels,
        x.ctypes.data, x.strides[0], len(x), out.ctypes.data, out.strides[0], INPUTS,
    )  # fmt: skip
    assert np.isnan(out[-1]).all() and np.isnan(out[:, PANEL * panels :]).all(), "written beyond what was asked for"
    return out[:-1, : PANEL * panels]


@pytest.mark.parametrize("name", STORED)
def test_any_number_of_rows_and_panels_gives_the_same_bits(name: str) -> None:
    """Catches a tile of another order of sums, rows or panels that are left out, and a format read as another."""
    whole, stored = numbers(name)
    x = np.random.default_rng(1).standard_normal((ROWS, INPUTS + 5)).astype(np.float32)[:, :INPUTS]
    alone = np.stack(
        [
            np.concatenate([product(stored, x[row : row + 1], each, 1)[0] for each in range(PANELS)])
            for row in range(ROWS)
        ]
    )
    exact = x.astype(np.float64) @ np.moveaxis(whole, 0, 1).reshape(INPUTS, -1)
    np.testing.assert_allclose(alone, exact, rtol=0, atol=2e-3)
    for rows in range(1, ROWS + 1):
        for panels in range(1, PANELS + 1):
            np.testing.assert_array_equal(product(stored, x[:rows], 0, panels), alone[:rows, : PANEL * panels])
