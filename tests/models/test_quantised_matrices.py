"""Matrices quantised in memory, as a compiled head keeps them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from outrider.kernels.numba.packed_formats import CODES, panel_table
from outrider.kernels.numba.packed_rows import unpack_rows
from outrider.models.engine import quantised

pytestmark = pytest.mark.cpu_paths


@pytest.mark.parametrize(("quantise", "slack"), [(quantised.in_eight_bits, 0.01), (quantised.in_four_bits, 0.12)])
@pytest.mark.parametrize("shape", [(16, 64), (48, 100), (200, 7), (1033, 40)])
def test_every_row_is_found_again(quantise: quantised.Quantise, slack: float, shape: tuple[int, int]) -> None:
    """Catches panels in another order, a piece that begins elsewhere, and a table that is off by a panel."""
    torch.manual_seed(0)
    weight = torch.randn(shape)
    matrix = quantised.matrix_of(weight, quantise)
    found = np.empty(shape, np.float32)
    unpack_rows(matrix.ctypes.data, np.arange(shape[0]), found)
    assert (torch.from_numpy(found) - weight).norm() <= slack * weight.norm()


def test_blocks_of_a_k_format_are_whole() -> None:
    """Products by AMX would read a block behind the last one of a panel."""
    assert len(panel_table([CODES["Q4_K"]], 512)) == 1
    with pytest.raises(AssertionError, match="blocks of 256 inputs, not of 300"):
        panel_table([CODES["Q4_K"]], 300)
