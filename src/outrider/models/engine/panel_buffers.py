"""Key/value buffers in the layouts that the compiled engine reads (``kernels/numba/kv_panels.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from outrider.models.kv_buffers import Buffers


class PanelBuffers(Buffers):
    """Keys [B, H, C, lines] and values [B, H, C, padded], C up to whole blocks.

    Of the keys, ``BLOCK`` positions are one block in an order of its own, and can only be moved together. ``paired``:
    of two lines of keys the numbers lie side by side, and of the values of two positions.
    """

    BLOCK = 32
    PANEL = 16  # keys that lie side by side

    def __init__(
        self, layers: Sequence[tuple[Tensor, Tensor]], capacity: int | None = None, paired: bool = False
    ) -> None:
        super().__init__(layers)
        self._capacity, self._paired = capacity, paired

    def _like(self, layers: Sequence[tuple[Tensor, Tensor]]) -> Self:
        return type(self)(layers, self._capacity, self._paired)

    @property
    def capacity(self) -> int:
        """As it was asked for: at most what there is room for."""
        return super().capacity if self._capacity is None else self._capacity

    def move(self, to: Tensor, source: Tensor, length: int, start: int = 0) -> None:
        super().move(to, source, -(-length // self.BLOCK) * self.BLOCK, start // self.BLOCK * self.BLOCK)

    def move_positions(self, row: int, to: Tensor, source: Tensor) -> None:
        width, pair = self.PANEL, 2 if self._paired else 1
        for keys, values in self.buffers():
            bits = torch.int32 if keys.dtype == torch.float32 else torch.int16  # numpy knows no bfloat16
            heads, _, lines = keys.shape[1:]
            by_pair = values[row].view(bits).numpy().reshape(heads, -1, values.shape[3], pair)
            (old, left), (new, right) = (divmod(places.numpy(), pair) for places in (to, source))
            by_pair[:, old, :, left] = by_pair[:, new, :, right]
            blocks = keys[row].view(bits).numpy().reshape(heads, -1, lines // pair, width, pair)
            (old, left), (new, right) = (divmod(places.numpy(), width) for places in (to, source))
            blocks[:, old, :, left] = blocks[:, new, :, right]

    def clear(self, rows: Tensor, positions: Tensor) -> None:
        """Nothing: scores of masked keys are replaced, and values are always finite."""

    def clear_rows(self, rows: range, positions: range) -> None:
        """Nothing, as ``clear``. Part of a block of keys could not be cleared without the rest of it."""
