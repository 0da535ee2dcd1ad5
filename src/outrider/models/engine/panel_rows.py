"""Single rows of a matrix that lies in panels: embeddings are read from where the output layer reads its weights."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from outrider.kernels.numba.packed_rows import unpack_rows
from outrider.kernels.numba.rows import HALF_PANELS, PACKED_PANELS, PANELS, Table


class _Table:
    """A matrix [V, size] on a CPU whose rows are made float32 when they are asked for: an ``EmbeddingTable``."""

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, rows: int, size: int) -> None:
        self.shape = torch.Size((rows, size))

    def __len__(self) -> int:
        return self.shape[0]

    def detach(self) -> Self:
        return self

    def _numbers(self, index: Any) -> np.ndarray[Any, Any]:
        """Of the rows that are asked for: a slice, or tokens [...]."""
        found: np.ndarray[Any, Any] = np.arange(len(self))[index] if isinstance(index, slice) else index.numpy()
        return found


class PanelRows(_Table):
    """A matrix [V, size] in panels (``numba_weights.py``): indexed by tokens it gives float32 rows.

    It takes no memory of its own.
    """

    def __init__(self, bits: np.ndarray[Any, Any], rows: int, size: int, unit: int | None = None) -> None:
        """``bits`` of bfloat16 [V / 16, size, 8, 2], where row 16 p + 8 h + j is [p, :, j, h]; or, with the power of
        two that weights were divided by, of float16 [V / 16, size up to whole chains, 16]."""
        self._bits, self._size, self._unit = bits, size, unit
        super().__init__(rows, size)
        kind, scale = (PANELS, 1.0) if unit is None else (HALF_PANELS, 2.0**unit)
        self.table = Table(bits.ctypes.data, size, kind, bits.shape[1], scale)

    def __getitem__(self, index: Any, /) -> Tensor:
        """Rows of tokens [...] -> [..., size]."""
        rows = self._numbers(index)
        if self._unit is None:  # a bfloat16 is the upper half of a float32
            found = self._bits[rows >> 4, :, rows & 7, rows >> 3 & 1].astype(np.uint32) << 16
            return torch.from_numpy(found).view(torch.float32)
        narrow = self._bits[rows >> 4, :, rows & 15].view(np.float16)[..., : self._size]
        return torch.from_numpy(narrow.astype(np.float32) * np.float32(2.0**self._unit))


class PackedRows(_Table):
    """A matrix [V, size] in four to eight bits (``packed_weights.py``): indexed by tokens it gives float32 rows."""

    def __init__(self, file: np.ndarray[Any, Any], place: int, rows: int, size: int) -> None:
        """``file``: the bytes that it begins in, at ``place``."""
        self._file, self._address = file, file.ctypes.data + place
        super().__init__(rows, size)
        self.table = Table(self._address, size, PACKED_PANELS)

    def __getitem__(self, index: Any, /) -> Tensor:
        """Rows of tokens [...] -> [..., size]."""
        rows = self._numbers(index)
        flat = np.ascontiguousarray(rows, np.int64).ravel()
        if len(flat) and not 0 <= flat.min() <= flat.max() < len(self):
            raise IndexError(f"rows from {flat.min()} to {flat.max()} of a table of {len(self)}")
        found = torch.empty((len(flat), self.shape[1]))
        unpack_rows(self._address, flat, found.numpy())
        return found.view(*rows.shape, self.shape[1])
