"""A blockwise head, run by torch or Triton: all guesses come from one look at the target's last state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

import torch
from torch import Tensor

from outrider.drafters.head.backend import DraftRequest, Texts
from outrider.drafters.head.layers import Head


class BatchedLayers(Protocol):
    """A head's modules and its output layer for any number of rows: all that torch and Triton differ in."""

    @property
    def name(self) -> str: ...

    @property
    def head(self) -> Head: ...

    def logits(self, state: Tensor) -> Tensor:
        """The output layer: states [B, size] -> [B, N]."""

    def likeliest(self, logits: Tensor) -> Tensor:
        """The token with the highest of logits [B, N] -> [B]."""


class BlockwiseBackend:
    """Runs a blockwise head for any number of rows. It has no KV cache: nothing is kept from step to step."""

    capturable = True

    def __init__(self, layers: BatchedLayers) -> None:
        self.layers, self.name = layers, layers.name

    def admit_all(self, texts: Texts, lengths: Mapping[int, int]) -> None:
        """The target has their last states."""

    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        texts.context.append(tokens, count)

    def rewind(self, texts: Texts) -> None:
        """The target goes back."""

    def select(self, texts: Texts, rows: Tensor) -> Self:
        return self

    def fork(self, texts: Texts, rows: Tensor) -> BlockwiseFork:
        return BlockwiseFork(self.layers, self._states(texts).index_select(0, rows))

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        self.states = self._states(texts)
        return min(gamma, self.states.shape[1])

    def logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        return self.layers.logits(self.states[:, k])

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.layers.likeliest(logits)

    def draft(self, texts: Texts, request: DraftRequest) -> None:
        """Guess by guess."""

    def _states(self, texts: Texts) -> Tensor:
        """Behind all guesses -> [B, k, size]."""
        assert texts.target.hidden is not None
        last = texts.context.read(texts.context.lengths - 1, 1)[:, 0]
        return self.layers.head.fan(texts.target.hidden, texts.embedding[last])


class BlockwiseFork(BlockwiseBackend):
    """A fork for beam search: it drafts on with the remaining blocks' states of the session it was made from."""

    def __init__(self, layers: BatchedLayers, left: Tensor) -> None:
        super().__init__(layers)
        self.left = left  # [B, k, size]: behind its next guesses

    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        super().commit(texts, tokens, count)
        columns = torch.arange(max(0, self.left.shape[1] - tokens.shape[1]), device=count.device)
        self.left = self.left[torch.arange(len(count), device=count.device)[:, None], columns + count[:, None]]

    def select(self, texts: Texts, rows: Tensor) -> Self:
        self.left = self.left.index_select(0, rows)
        return self

    def _states(self, texts: Texts) -> Tensor:
        return self.left
