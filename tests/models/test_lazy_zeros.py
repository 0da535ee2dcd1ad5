"""Zeros that cost nothing until they are written to."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch

from outrider.models.kv_buffers import Buffers
from outrider.models.lazy_zeros import LINE, zeros

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64]


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (5, 7, 11), (300, 1000), (0, 4)])
def test_they_are_zeros_that_can_be_written(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made, other = zeros(shape, dtype, CPU), zeros(shape, dtype, CPU)
    assert made.shape == shape and made.dtype == dtype and made.is_contiguous() and not made.any()
    made += 1
    assert (made == 1).all() and not other.any()


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_that_is_not_written_is_not_taken() -> None:
    """Making a KV cache for 8,000 tokens took time and memory for all of them, also for an answer of ten."""
    before = resident()
    room = zeros((256, 1 << 20), torch.uint8, CPU)
    assert resident() - before < 64 << 20
    room[:64] = 1
    assert 64 << 20 <= resident() - before < 128 << 20
    del room
    assert resident() - before < 32 << 20, "it is given back"


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_buffers_of_layers_share_nothing_but_a_piece_of_memory(dtype: torch.dtype) -> None:
    """Catches buffers that overlap, and such as do not begin at a line: vectors would be read from two each."""
    shapes = [(3, 5, 7), (1, 16, 16), (2, 9, 1)]
    pairs = Buffers.allocate(shapes, rows=2, capacity=33, dtype=dtype, device=CPU).buffers()
    flat = [buffer for pair in pairs for buffer in pair]
    assert [b.shape for b in flat] == [(2, h, 33, size) for h, dk, dv in shapes for size in (dk, dv)]
    for number, buffer in enumerate(flat, 1):
        buffer.fill_(number)
    assert all((b == number).all() and b.is_contiguous() for number, b in enumerate(flat, 1))
    assert len({b.data_ptr() % LINE for b in flat}) == 1
    large = Buffers.allocate([(4, 64, 64)] * 3, rows=2, capacity=512, dtype=dtype, device=CPU).buffers()
    assert all(b.data_ptr() % LINE == 0 for pair in large for b in pair)
