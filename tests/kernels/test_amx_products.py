"""Products by AMX: as exact as inputs of 17 bits allow, and the same bits whatever is beside a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from outrider.core.embedding_table import EmbeddingTable
from outrider.kernels.numba import amx_products
from outrider.kernels.numba.rows import look_up
from outrider.kernels.numba.tiles import PANEL, compiled
from outrider.models.engine.numba_weights import amx_panels
from outrider.models.engine.panel_rows import PanelRows
from outrider.runtime import cpu


@compiled
def _release() -> None:
    amx_products.release()


needs_amx = pytest.mark.skipif(not cpu.facts().has_amx, reason="this CPU has no AMX")

MOST = 40


def _weight(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


def _inputs(rows: int, inputs: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((rows, inputs)).astype(np.float32)


def _multiplied(x: np.ndarray[Any, Any], weight: torch.Tensor) -> np.ndarray[Any, Any]:
    panels, rows = amx_panels(weight), len(x)
    parts = np.full((rows, amx_products.part_size(x.shape[1])), 0x7FC0, np.uint16)  # NaN: all is to be written
    amx_products.split(x, parts)
    out = np.full((rows + 1, PANEL * len(panels)), np.nan, np.float32)
    registers = amx_products.Registers(amx_products.SHAPES, np.zeros(1, np.int64))
    amx_products.amx_product(panels.ctypes.data, parts, registers, out.ctypes.data, out.shape[1], len(panels))
    _release()
    assert np.isnan(out[-1]).all()  # nothing is written behind the last row
    return out[:-1]


@needs_amx
@pytest.mark.parametrize("inputs", [16, 32, 80, 576])
@pytest.mark.parametrize("panels", [1, 2, 3, 7])
def test_a_product_is_that_of_its_inputs(inputs: int, panels: int) -> None:
    x, weight = _inputs(MOST, inputs), _weight(PANEL * panels, inputs)
    exact = x.astype(np.float64) @ weight.double().numpy().T
    size = np.abs(x).astype(np.float64) @ weight.abs().double().numpy().T
    assert (np.abs(_multiplied(x, weight) - exact) <= 2.0**-17 * size).all()


@needs_amx
def test_a_row_has_the_same_bits_beside_any_others() -> None:
    x, weight = _inputs(MOST, 80), _weight(7 * PANEL, 80)
    whole = _multiplied(x, weight).view(np.int32)
    for rows in (1, 2, 15, 16, 17, 31, 33):
        np.testing.assert_array_equal(_multiplied(x[:rows], weight).view(np.int32), whole[:rows])
        np.testing.assert_array_equal(_multiplied(x[MOST - rows :].copy(), weight).view(np.int32), whole[MOST - rows :])
    for panels in (1, 2, 5):
        found = _multiplied(x, weight[: PANEL * panels])
        np.testing.assert_array_equal(found.view(np.int32), whole[:, : PANEL * panels])


@needs_amx
def test_what_is_no_number_stays_in_its_row() -> None:
    x, weight = _inputs(20, 64), _weight(2 * PANEL, 64)
    clean = _multiplied(x, weight).view(np.int32)
    x[3, 5], x[18, 0] = np.nan, np.inf
    found = _multiplied(x, weight)
    assert not np.isfinite(found[[3, 18]]).any()
    others = [row for row in range(20) if row not in (3, 18)]
    np.testing.assert_array_equal(found[others].view(np.int32), clean[others])


def test_rows_are_found_in_panels_for_amx() -> None:
    """An embedding is read from where the output matrix lies, in Python and in compiled code."""
    weight = _weight(40, 80)
    panels = amx_panels(weight)
    table = PanelRows(panels.view(np.uint8).ravel(), 0, panels.shape, 40, 80)
    rows: EmbeddingTable = table
    tokens = torch.tensor([[0, 7, 8], [15, 16, 39]])
    assert torch.equal(rows[tokens], weight[tokens].float())
    assert torch.equal(rows[:5], weight[:5].float())
    out = np.empty(80, np.float32)
    for token in (0, 7, 8, 15, 16, 39):
        look_up(table.table, token, out)
        np.testing.assert_array_equal(out, weight[token].float().numpy())
