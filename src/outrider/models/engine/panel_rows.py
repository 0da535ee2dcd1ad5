"""Single rows of a matrix that lies in panels: embeddings are read from where the output layer reads its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from outrider.kernels.numba import amx_products
from outrider.kernels.numba.packed_rows import unpack_rows
from outrider.kernels.numba.rows import AMX_PANELS, FLOAT_PANELS, HALF_PANELS, PACKED_PANELS, PANELS, Table


class TableRows:
    """A matrix [V, size] on a CPU whose rows are made float32 when they are asked for: an ``EmbeddingTable``.

    Compiled code reads them by ``table``.
    """

    table: Table
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


class PanelRows(TableRows):
    """A matrix [V, size] in panels (``numba_weights.py``): indexed by tokens it gives float32 rows.

    It takes no memory of its own.
    """

    def __init__(
        self,
        file: np.ndarray[Any, Any],
        place: int,
        shape: Sequence[int],
        rows: int,
        size: int,
        unit: int | None = None,
    ) -> None:
        """From ``place`` of a file's bytes on, panels of this shape: bfloat16 [V / 16, size, 8, 2], where row
        16 p + 8 h + j is [p, :, j, h]; for AMX [V / 16, size / 32, 16, 16, 2], where row 16 p + j is [p, :, :, j];
        float32 [V / 16, size, 16]; or, with the power of two that weights were divided
        by, float16 [V / 16, size up to whole chains, 16]."""
        number: Any
        kind, number = (FLOAT_PANELS, np.float32) if unit is None else (HALF_PANELS, np.float16)
        if len(shape) > 3:
            kind, number = PANELS if len(shape) == 4 else AMX_PANELS, np.uint16
        inputs = shape[1] if kind != AMX_PANELS else shape[1] * amx_products.CHUNK
        scale = 2.0 ** (unit or 0)
        self._kind, self._scale = kind, np.float32(scale)
        size_on_disk = math.prod(shape) * np.dtype(number).itemsize
        self._panels = file[place : place + size_on_disk].view(number).reshape(shape)
        super().__init__(rows, size)
        self.table = Table(self._panels.ctypes.data, size, kind, inputs, scale)

    def __getitem__(self, index: Any, /) -> Tensor:
        """Rows of tokens [...] -> [..., size]."""
        rows = self._numbers(index)
        if self._kind == PANELS:  # a bfloat16 is the upper half of a float32
            bits = self._panels[rows >> 4, :, rows & 7, rows >> 3 & 1].astype(np.uint32) << 16
            return torch.from_numpy(bits).view(torch.float32)
        if self._kind == AMX_PANELS:
            pairs = self._panels[rows >> 4, :, :, rows & 15].reshape(*rows.shape, -1)[..., : self.shape[1]]
            return torch.from_numpy(pairs.astype(np.uint32) << 16).view(torch.float32)
        found = self._panels[rows >> 4, :, rows & 15][..., : self.shape[1]]
        return torch.from_numpy(found.astype(np.float32) * self._scale)


class PackedRows(TableRows):
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
