"""A block head run by torch: any number of rows, on any device, in the target's dtype.

Text is read as ``torch_backend.py`` reads it. As a draft begins the layers run once for all of its guesses, and from
guess to guess only the corrector runs, and the output layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.protocols import Shape
from outrider.drafters.head.backend import DraftRequest, Texts
from outrider.drafters.head.backends.blockwise import BatchedLayers
from outrider.drafters.head.backends.torch_backend import LazyTorchBackend, TorchBackend, head_cache
from outrider.drafters.head.layers import Corrector, Head


class BlockGuesses:
    """The guesses of one draft: states made side by side [B, G, size], and the corrector's state z [B, R]."""

    def __init__(self, corrector: Corrector, states: Tensor, z: Tensor | None = None) -> None:
        self.corrector, self.states = corrector, states
        self.z = corrector.begin(states[:, 0]) if z is None else z

    def __len__(self) -> int:
        return self.states.shape[1]

    def state(self, k: int, texts: Texts, last: Tensor) -> Tensor:
        """Behind guess k, after token ``last`` [B] -> [B, size]. Guesses are gone through in order."""
        self.z = self.corrector(self.states[:, k], texts.embedding[last], self.z)
        shift: Tensor = self.corrector.out(self.z)
        return self.states[:, k] + shift

    def rows(self, rows: Tensor) -> BlockGuesses:
        return BlockGuesses(self.corrector, self.states.index_select(0, rows), self.z.index_select(0, rows))


class BlockBackend(TorchBackend):
    """Runs a block head for any number of rows."""

    layers: BatchedLayers
    head: Head

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        assert self.head.masks is not None
        gamma = min(gamma, super().begin(texts, len(self.head.masks) + 1, caps))
        self.guessing = self._guessing(texts)
        return gamma

    def fork(self, texts: Texts, rows: Tensor) -> BlockFork:  # type: ignore[override]
        assert self.head.masks is not None
        super().begin(texts, len(self.head.masks) + 1)
        return BlockFork(self.layers, self._guessing(texts).rows(rows))

    def _guessing(self, texts: Texts) -> BlockGuesses:
        """After ``begin``: the layers, once for all guesses. How many other rows ask for does not change their bits."""
        newest, every = texts.newest, self._all(texts)
        token = texts.embedding[texts.context.tokens[every, newest + 1]]
        x = self.head.spread(self.head.seen(texts.states[every, newest]), token)  # [B, G, size]
        assert self.head.corrector is not None
        return BlockGuesses(self.head.corrector, self.head.think(x, self.positions, self.memory))

    def _state(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        return self.guessing.state(k, texts, last)[:, None]


class LazyBlockBackend(BlockBackend, LazyTorchBackend):
    """On a CPU: text is read when a draft needs it."""

    def fork(self, texts: Texts, rows: Tensor) -> BlockFork:  # type: ignore[override]
        self._catch_up(texts)
        return super().fork(texts, rows)


class BlockFork:
    """A fork for beam search and trees: it drafts on with the guesses that are left of one look at the target."""

    capturable = True

    def __init__(self, layers: BatchedLayers, left: BlockGuesses) -> None:
        self.layers, self.name, self.left = layers, layers.name, left

    def admit_all(self, texts: Texts, lengths: Mapping[int, int]) -> None:
        """A fork has no new texts."""

    @torch.no_grad()
    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        left, guesses = self.left, len(self.left)
        every = torch.arange(len(count), device=count.device)
        for k in range(min(tokens.shape[1], guesses)):  # each row has used up as many guesses as it has new tokens
            last = texts.context.read(texts.context.lengths - 1, 1)[:, 0]
            real = k < count
            after = left.corrector(left.states[:, k], texts.embedding[last], left.z)
            left.z = torch.where(real[:, None], after, left.z)
            texts.context.append(tokens[:, k : k + 1], real.to(torch.int64))
        texts.context.append(tokens[:, guesses:], (count - guesses).clamp(min=0))
        columns = torch.arange(max(0, guesses - tokens.shape[1]), device=count.device)
        self.left = BlockGuesses(left.corrector, left.states[every[:, None], columns + count[:, None]], left.z)

    def rewind(self, texts: Texts) -> None:
        """A fork goes on, never back."""

    def select(self, texts: Texts, rows: Tensor) -> Self:
        self.left = self.left.rows(rows)
        return self

    def fork(self, texts: Texts, rows: Tensor) -> BlockFork:
        return BlockFork(self.layers, self.left.rows(rows))

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        self.guessing = BlockGuesses(self.left.corrector, self.left.states, self.left.z)
        return min(gamma, len(self.left))

    def logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        return self.layers.logits(self.guessing.state(k, texts, last))

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.layers.likeliest(logits)

    def draft(self, texts: Texts, request: DraftRequest) -> None:
        """Guess by guess."""


def start_block(layers: BatchedLayers, heads: tuple[int, int], like: Tensor, rows: int, shape: Shape) -> TorchBackend:
    """The backend for so many rows: its keys have (heads, size), and dtype and device of ``like``."""
    cache, slots = head_cache(layers.head.attention is not None, heads, like, rows, shape)
    if host_sync.free(like.device):
        return LazyBlockBackend(layers, cache, slots, shape.width, rows)
    return BlockBackend(layers, cache, slots, shape.width)
