"""Products with packed weights: the same bits from every tile, for every kind of vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from outrider.kernels.numba import layer_math, tiles
from outrider.kernels.numba.tiles import PANEL
from outrider.models.engine.numba_weights import column_panels, panels
from outrider.runtime import cpu

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

INPUTS, MOST, PANELS = 24, tiles.MOST_ROWS, 7


@pytest.fixture(scope="module")
def matrix() -> torch.Tensor:
    return torch.randn(PANELS * PANEL, INPUTS, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


@pytest.fixture(scope="module")
def x() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((MOST, INPUTS)).astype(np.float32)


def _aligned(weight: torch.Tensor) -> np.ndarray[Any, Any]:
    """As panels, at an address that vectors can be read from, with more behind them."""
    packed = (panels if weight.dtype == torch.bfloat16 else column_panels)(weight).view(np.uint8).ravel()
    room = np.zeros(packed.size + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + packed.size] = packed
    return room[start:]


def _with_tile(
    weights: np.ndarray[Any, Any], x: np.ndarray[Any, Any], rows: int, wide: int, size: int = 2
) -> np.ndarray[Any, Any]:
    """Rows of x times as many panels as there are, by one tile, ``wide`` panels at a time."""
    count = PANELS // wide * wide
    out = np.full((rows, PANEL * count), np.nan, np.float32)
    multiply = tiles.tile(rows, wide, size)
    for first in range(0, count, wide):
        multiply(
            weights.ctypes.data + size * PANEL * INPUTS * first, x.ctypes.data, INPUTS,
            out.ctypes.data + 4 * PANEL * first, PANEL * count, INPUTS,
        )  # fmt: skip
    return out


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_weights_may_lie_at_any_address(matrix: torch.Tensor, x: np.ndarray[Any, Any], kind: torch.dtype) -> None:
    """Vectors were read as if they lay at multiples of 32 bytes, which ended the process where panels did not."""
    weights, size = _aligned(matrix.to(kind)), kind.itemsize
    room = np.zeros(weights.size + 128, np.uint8)
    first = -room.ctypes.data % 64
    for place in (first + 2, first + 16, first + 40):
        room[place : place + weights.size] = weights
        for wide in (1, 2):
            expected = _with_tile(weights, x, MOST, wide, size)
            np.testing.assert_array_equal(_with_tile(room[place:], x, MOST, wide, size), expected)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("arm, wide, ahead", [(True, False, 0), (False, False, 0), (False, True, 2048)])
def test_every_tile_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, matrix: torch.Tensor, x: np.ndarray[Any, Any], arm: bool, wide: bool, ahead: int,
    kind: torch.dtype,
) -> None:  # fmt: skip
    monkeypatch.setattr(tiles, "ARM", arm)
    monkeypatch.setattr(tiles, "WIDE", wide)
    monkeypatch.setattr(tiles, "AHEAD", ahead)
    weights, size = _aligned(matrix.to(kind)), kind.itemsize
    whole = _with_tile(weights, x, MOST, 1, size)
    exact = x.astype(np.float64) @ matrix.double().numpy().T
    np.testing.assert_allclose(whole, exact, rtol=1e-5, atol=1e-5)
    for rows, side_by_side in ((1, 1), (1, 2), (2, 4), (MOST, 2)):
        found = _with_tile(weights, x, rows, side_by_side, size)
        np.testing.assert_array_equal(found.view(np.int32), whole[:rows, : found.shape[1]].view(np.int32))


@pytest.mark.parametrize("rows", [1, MOST + 1])
def test_a_product_of_any_number_of_panels(matrix: torch.Tensor, x: np.ndarray[Any, Any], rows: int) -> None:
    given = np.concatenate([x, x])[:rows]
    whole = _with_tile(_aligned(matrix), x, 1, 1)
    exact = given.astype(np.float64) @ matrix.double().numpy().T
    for kind, product in ((torch.bfloat16, layer_math.product), (torch.float32, layer_math.float32_product)):
        weights, out = _aligned(matrix.to(kind)), np.zeros((rows, PANELS * PANEL), np.float32)
        product(weights.ctypes.data, given.ctypes.data, rows, INPUTS, out.ctypes.data, PANELS * PANEL, PANELS)
        np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(out[:1].view(np.int32), whole.view(np.int32))


@pytest.mark.parametrize("wide, most, registers", [(False, 6, 16), (True, 12, 32)])
def test_sums_fit_into_registers(monkeypatch: pytest.MonkeyPatch, wide: bool, most: int, registers: int) -> None:
    monkeypatch.setattr(tiles, "ARM", False)
    monkeypatch.setattr(tiles, "WIDE", wide)
    for rows in range(1, most + 1):
        found = tiles.together(rows)
        assert 2 * found * rows // tiles.joined_panels(found) <= registers - 4
    assert tiles.together(1) == 4
    assert tiles.together(most) == tiles.joined_panels(2), "vectors of 512 bits hold two panels, of any number of rows"


@pytest.mark.parametrize("rows", range(1, 2 * tiles.MOST_ROWS + 2))
def test_a_row_has_the_same_bits_in_a_product_of_any_number_of_rows(matrix: torch.Tensor, rows: int) -> None:
    """Catches a number of rows that is cut into parts which no tile has been made for."""
    x = np.random.default_rng(2).standard_normal((rows, INPUTS)).astype(np.float32)
    for kind, product in ((torch.bfloat16, layer_math.product), (torch.float32, layer_math.float32_product)):
        weights = _aligned(matrix.to(kind))
        out, alone = np.zeros((rows, PANELS * PANEL), np.float32), np.zeros((1, PANELS * PANEL), np.float32)
        product(weights.ctypes.data, x.ctypes.data, rows, INPUTS, out.ctypes.data, PANELS * PANEL, PANELS)
        for row in range(rows):
            given = x[row : row + 1].copy()
            product(weights.ctypes.data, given.ctypes.data, 1, INPUTS, alone.ctypes.data, PANELS * PANEL, PANELS)
            np.testing.assert_array_equal(out[row].view(np.int32), alone[0].view(np.int32))
