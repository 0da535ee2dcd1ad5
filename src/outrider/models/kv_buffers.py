"""Key/value buffers of fixed capacity, a row for every sequence. What reads them decides where it writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from outrider.models.lazy_zeros import LINE, zeros
from outrider.runtime.memory import available_bytes

LayerShape = tuple[int, int, int]
"""(key/value heads, key dimension, value dimension) of one layer."""

WORTH_CHECKING = 1 << 24
"""Bytes of a KV cache from which on it is compared with the memory that is free."""


def _check_memory(size: int, device: torch.device) -> bool:
    """MemoryError where the host has not that much. Linux grants it all the same, and kills a process that uses it.

    -> whether memory may be taken when it is first written to: not where this is a large part of what there is, of
    which the next one must see that it is gone.
    """
    if device.type != "cpu" or size <= WORTH_CHECKING:
        return device.type == "cpu"
    if size > (there := available_bytes()):
        raise MemoryError(f"KV caches of {size / 2**30:.1f} GiB")
    return 8 * size <= there


def _side_by_side(sizes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Buffers in one piece of memory, each from a line on: most of it may never be reached, and takes no time then."""
    counts, line = [math.prod(size) for size in sizes], LINE // dtype.itemsize
    whole = zeros([sum(-(-count // line) * line for count in counts)], dtype, device)
    parts = torch.split(whole, [-(-count // line) * line for count in counts])
    return [part[:count].view(size) for part, count, size in zip(parts, counts, sizes, strict=True)]


def _stacked(buffers: Sequence[Tensor]) -> list[Tensor]:
    """Buffers of one memory as one view [N, ...], if they are alike and equally far apart; else each by itself."""
    first, places = buffers[0], [buffer.storage_offset() for buffer in buffers]
    steps = {after - before for before, after in pairwise(places)}
    alike = {(buffer.untyped_storage().data_ptr(), buffer.shape, buffer.stride()) for buffer in buffers}
    if len(alike) > 1 or len(steps) > 1 or min(steps, default=1) <= 0:
        return [buffer[None] for buffer in buffers]
    return [
        first.as_strided((len(buffers), *first.shape), (*steps, *first.stride()) if steps else (0, *first.stride()))
    ]


class Buffers:
    """Keys and values of every layer, [B, H, C, D] each."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._pairs = list(layers)

    @classmethod
    def allocate(
        cls, shapes: Sequence[LayerShape], rows: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        lazy = _check_memory(rows * capacity * dtype.itemsize * sum(h * (dk + dv) for h, dk, dv in shapes), device)

        sizes = [(rows, h, capacity, size) for h, dk, dv in shapes for size in (dk, dv)]
        if lazy:
            found = _side_by_side(sizes, dtype, device)
        else:
            found = [torch.zeros(size, dtype=dtype, device=device) for size in sizes]
        return cls(list(zip(found[::2], found[1::2], strict=True)))

    def part(self, rows: range) -> Self:
        """A view of rows that lie side by side: what is written there is written here."""
        return self._like([(k[rows.start : rows.stop], v[rows.start : rows.stop]) for k, v in self.buffers()])

    def select(self, rows: Tensor) -> Self:
        return self._like([(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.buffers()])

    def _like(self, layers: Sequence[tuple[Tensor, Tensor]]) -> Self:
        """Other rows of the same kind."""
        return type(self)(layers)

    @property
    def capacity(self) -> int:
        """C."""
        return self.buffers()[0][0].shape[2]

    @cached_property
    def slots(self) -> Tensor:
        """[C]: the positions there is room for."""
        return torch.arange(self.capacity, device=self.buffers()[0][0].device)

    @cached_property
    def stacks(self) -> list[Tensor]:
        """All buffers, as views [N, B, H, C, D] of several where they lie in memory at equal distances: an operation on
        each of sixty took 3 ms."""
        return [stack for kind in zip(*self.buffers(), strict=True) for stack in _stacked(kind)]

    def reorder(self, rows: Tensor, length: int, start: int = 0) -> None:
        """Make row i the old row rows[i], in place and as far as they are filled: most rows stay where they are.

        ``start``: before this position the rows that move hold what they are to hold already.
        """
        moved = (rows != torch.arange(len(rows))).nonzero()[:, 0]
        self.move(moved, rows[moved], length, start)

    def move(self, to: Tensor, source: Tensor, length: int, start: int = 0) -> None:
        """Overwrite rows ``to`` with the old rows ``source``, from a position on and as far as they are filled."""
        if len(to) and start < length:
            for stack in self.stacks:  # the right side is a copy: rows may change places
                stack[:, to, :, start:length] = stack[:, source, :, start:length]

    def clear_rows(self, rows: range, positions: range) -> None:
        """Zero positions of rows that lie side by side."""
        for stack in self.stacks:
            stack[:, rows.start : rows.stop, :, positions.start : positions.stop].zero_()

    def clear(self, rows: Tensor, positions: Tensor) -> None:
        """Zero what is at positions [n, k] of rows [n, 1]: it is masked, but a NaN passes through any mask."""
        for buffer in (b for pair in self.buffers() for b in pair):
            buffer[rows, :, positions] = 0

    def move_positions(self, row: int, to: Tensor, source: Tensor) -> None:
        """Overwrite positions [n] of a row with others of it, as they were before."""
        for buffer in (b for pair in self.buffers() for b in pair):
            buffer[row, :, to] = buffer[row, :, source]

    def buffers(self) -> list[tuple[Tensor, Tensor]]:
        return self._pairs
