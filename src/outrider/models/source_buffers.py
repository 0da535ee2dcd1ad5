"""The KV cache of an encoder-decoder model: the decoder's own keys and values, and those of each row's source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from outrider.models.kv_buffers import Buffers


class SourceBuffers(Buffers):
    """Two kinds of buffers. What is cleared, moved and grown from run to run is the decoder's own."""

    def __init__(self, own: Any, cross: Any, lengths: Tensor, names: Tensor) -> None:
        """Both are ``Buffers``, of the kind that the engine reads."""
        self.own, self.cross = own, cross
        self.lengths = lengths  # [B]: of the sources
        self.names = names  # [B]: which source a row holds, a number of its own for each

    @classmethod
    def empty(cls, own: Any, cross: Any, length: int = 1) -> Self:
        """Without sources. Their length is 1 where attention cannot do without something to look at."""
        keys = own.buffers()[0][0]
        rows, device = keys.shape[0], keys.device
        lengths = torch.full((rows,), length, dtype=torch.int64, device=device)
        return cls(own, cross, lengths, torch.arange(-rows, 0, device=device))

    def fill(self, row: int, given: Sequence[tuple[Tensor, Tensor]], length: int) -> None:
        """Keep keys and values [1, H, S, D] of a source, layer by layer."""
        for (key, value), (k, v) in zip(self.cross.buffers(), given, strict=True):
            key[row].zero_()
            value[row].zero_()
            key[row, :, : k.shape[2]] = k[0]
            value[row, :, : v.shape[2]] = v[0]
        self.filled(row, length)

    def filled(self, row: int, length: int) -> None:
        """A row holds another source now, of so many tokens."""
        self.lengths[row] = length
        self.names[row] = self.names.max() + 1

    def part(self, rows: range) -> Self:
        part = slice(rows.start, rows.stop)
        return type(self)(self.own.part(rows), self.cross.part(rows), self.lengths[part], self.names[part])

    def select(self, rows: Tensor) -> Self:
        lengths, names = self.lengths.index_select(0, rows), self.names.index_select(0, rows)
        return type(self)(self.own.select(rows), self.cross.select(rows), lengths, names)

    def reorder(self, rows: Tensor, length: int, start: int = 0) -> None:
        moved = (self.names != self.names[rows]).nonzero()[:, 0]  # one source, many rows: stays
        self.own.reorder(rows, length, 0 if len(moved) else start)  # behind another source, keys are others
        self.cross.move(moved, rows[moved], len(self.cross.slots))
        self.lengths = self.lengths.index_select(0, rows)
        self.names = self.names.index_select(0, rows)

    def buffers(self) -> list[tuple[Tensor, Tensor]]:
        found: list[tuple[Tensor, Tensor]] = self.own.buffers()
        return found
