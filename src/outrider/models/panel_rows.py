"""Single rows of a matrix that lies in panels: embeddings are read from where the output layer reads its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.jit.rows import Table


class PanelRows:
    """A matrix [V, size] in the panels of ``jit_files.panels``: indexed by tokens it gives float32 rows.

    As much of a tensor as those who look embeddings up need. It takes no memory of its own.
    """

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, bits: np.ndarray[Any, Any], rows: int) -> None:
        self._bits = bits  # [V / 16, size, 8, 2] of 16 bits: row 16 p + 8 h + j is [p, :, j, h]
        self.shape = torch.Size((rows, bits.shape[1]))
        self.table = Table(bits.ctypes.data, bits.shape[1], panels=True)

    def __len__(self) -> int:
        return self.shape[0]

    def detach(self) -> PanelRows:
        return self

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Rows of tokens [...] -> [..., size]; a bfloat16 is the upper half of a float32."""
        rows = np.arange(len(self))[index] if isinstance(index, slice) else index.numpy()
        found = self._bits[rows >> 4, :, rows & 7, rows >> 3 & 1].astype(np.uint32)
        found <<= 16
        return torch.from_numpy(found).view(torch.float32)
