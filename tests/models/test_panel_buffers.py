"""Positions of a KV cache in the engine's layouts: what is moved is what was written there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

import torch

from outrider.kernels.numba import kv_panels, kv_writes
from outrider.kernels.numba.tiles import compiled
from outrider.models.engine.panel_buffers import PanelBuffers
from outrider.runtime import cpu

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

HEADS, CAPACITY, DEPTH, PADDED = 2, 64, 24, 32
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@compiled
def _write(stored: Any, keys: int, lines: int, values: int, padded: int, x: Any) -> None:
    for place in range(len(x)):
        kv_writes.write_key(stored, keys, lines, place, x[place], x.shape[1])
        kv_writes.write_value(stored, values, padded, place, -x[place], x.shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_are_moved_as_they_were_written(dtype: str) -> None:
    """Catches a move that takes keys or values of a neighbour, in pairs or not; other positions keep theirs."""
    if dtype == "float16" and not kv_panels.HAS_FLOAT16:
        pytest.skip("this CPU has no float16")
    lines, stored = kv_panels.key_lines(dtype, DEPTH), np.empty(0, kv_panels.STORED[dtype])
    x = np.random.default_rng(0).integers(-99, 99, (HEADS, CAPACITY, DEPTH)).astype(np.float32)
    to, source = [33, 34, 35], [34, 37, 50]
    moved = x.copy()
    moved[:, to] = x[:, source]

    def filled(numbers: Any) -> PanelBuffers:
        made = PanelBuffers.allocate([(HEADS, lines, PADDED)], 1, CAPACITY, DTYPES[dtype], torch.device("cpu"))
        found = PanelBuffers(made.buffers(), CAPACITY, kv_panels.paired(dtype))
        for keys, values in found.buffers():
            for head in range(HEADS):
                _write(stored, keys[0, head].data_ptr(), lines, values[0, head].data_ptr(), PADDED, numbers[head])
        return found

    cache = filled(x)
    cache.move_positions(0, torch.tensor(to), torch.tensor(source))
    for pair, expected in zip(cache.buffers(), filled(moved).buffers(), strict=True):
        for one, other in zip(pair, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
