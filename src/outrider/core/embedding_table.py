"""An embedding table: rows by token, however they are stored. A plain tensor is one."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class EmbeddingTable(Protocol):
    """[V, size]: a model's input or output embeddings."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows it gives."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Tensor:
        """Rows of tokens [...] -> [..., size], or of a slice of tokens."""

    def detach(self) -> Self:
        """The same table, of which no gradient is wanted."""
