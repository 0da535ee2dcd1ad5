"""A head that makes its guesses side by side, run by torch: any number of rows, on any device, in the target's dtype.

Text is read as ``torch_backend.py`` reads it. As a draft begins the layers run once for all of its guesses, and from
guess to guess only a corrector runs, if there is one, and the output layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.embedding_table import EmbeddingTable
from outrider.core.protocols import Shape
from outrider.drafters.head.backend import DraftRequest, Texts
from outrider.drafters.head.backends.torch_backend import LazyTorchBackend, RecurrentHead, TorchBackend, head_cache
from outrider.drafters.head.layers import Memory


class ParallelHead(RecurrentHead, Protocol):
    """The modules of a head that makes all guesses in one run, each of which may then be told the tokens before it."""

    @property
    def guesses(self) -> int:
        """That one run makes."""

    def side_by_side(
        self, states: Tensor, embedding: EmbeddingTable, tokens: Tensor, positions: Tensor, memory: Memory | None
    ) -> tuple[Tensor, Tensor]:
        """States of all guesses [B, G, size] behind the newest tokens [B], and what is carried to the first one [B, R].

        ``states`` [B, L, size] of the target are those before these tokens, at ``positions`` [B, G], the first column.
        """

    def follow(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor, carried: Tensor) -> Tensor:
        """What is carried on from a guess whose state is [B, size], behind tokens [B] -> [B, R]."""

    def corrected(self, state: Tensor, carried: Tensor) -> Tensor:
        """What the output layer reads of a guess, given what ``follow`` gave for it."""


class ParallelLayers(Protocol):
    """A head's modules and its output layer for any number of rows."""

    @property
    def name(self) -> str: ...

    @property
    def head(self) -> ParallelHead: ...

    def logits(self, state: Tensor) -> Tensor:
        """The output layer: what ``corrected`` gave [B, ...] -> [B, N]."""

    def likeliest(self, logits: Tensor) -> Tensor:
        """The token with the highest of logits [B, N] -> [B]."""

    def likeliest_few(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The so many highest of logits [B, N], highest first: log-probabilities and tokens [B, count]."""

    def acceptance(self, state: Tensor) -> Tensor | None:
        """How likely a guess is kept, from what ``corrected`` gave [B, ...] -> [B]; None: the head does not tell."""


class BlockGuesses:
    """The guesses of one draft: states made side by side [B, G, size], and what is carried from one to the next."""

    def __init__(self, head: ParallelHead, states: Tensor, carried: Tensor) -> None:
        self.head, self.states, self.carried = head, states, carried

    def __len__(self) -> int:
        return self.states.shape[1]

    def state(self, k: int, texts: Texts, last: Tensor) -> Tensor:
        """What the output layer reads of guess k, after token ``last`` [B]. Guesses are gone through in order."""
        self.carried = self.head.follow(self.states[:, k], texts.embedding, last, self.carried)
        self.newest = self.head.corrected(self.states[:, k], self.carried)
        return self.newest

    def rows(self, rows: Tensor) -> BlockGuesses:
        return BlockGuesses(self.head, self.states.index_select(0, rows), self.carried.index_select(0, rows))


class BlockBackend(TorchBackend):
    """Runs such a head for any number of rows."""

    layers: ParallelLayers
    head: ParallelHead
    branches = False  # its guesses are made before any of them is chosen

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        gamma = min(gamma, super().begin(texts, self.head.guesses, caps))
        self.guessing = self._guessing(texts)
        return gamma

    def fork(self, texts: Texts, rows: Tensor) -> BlockFork:  # type: ignore[override]
        super().begin(texts, self.head.guesses)
        return BlockFork(self.layers, self._guessing(texts).rows(rows))

    def _guessing(self, texts: Texts) -> BlockGuesses:
        """After ``begin``: the layers, once for all guesses. How many other rows ask for does not change their bits."""
        newest, every = texts.newest, self._all(texts)
        tokens, states = texts.context.tokens[every, newest + 1], texts.states[every, newest]
        made = self.head.side_by_side(states, texts.embedding, tokens, self.positions, self.memory)
        return BlockGuesses(self.head, *made)

    def _state(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        return self.guessing.state(k, texts, last[:, 0])[:, None]

    def acceptance(self) -> Tensor | None:
        return self.layers.acceptance(self.guessing.newest)


class LazyBlockBackend(BlockBackend, LazyTorchBackend):
    """On a CPU: text is read when a draft needs it."""

    def fork(self, texts: Texts, rows: Tensor) -> BlockFork:  # type: ignore[override]
        self._catch_up(texts)
        return super().fork(texts, rows)


class BlockFork:
    """A fork for beam search and trees: it drafts on with the guesses that are left of one look at the target."""

    capturable = True

    def __init__(self, layers: ParallelLayers, left: BlockGuesses) -> None:
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
            after = left.head.follow(left.states[:, k], texts.embedding, last, left.carried)
            left.carried = torch.where(real[:, None], after, left.carried)
            texts.context.append(tokens[:, k : k + 1], real.to(torch.int64))
        texts.context.append(tokens[:, guesses:], (count - guesses).clamp(min=0))
        columns = torch.arange(max(0, guesses - tokens.shape[1]), device=count.device)
        self.left = BlockGuesses(left.head, left.states[every[:, None], columns + count[:, None]], left.carried)

    def rewind(self, texts: Texts) -> None:
        """A fork goes on, never back."""

    def select(self, texts: Texts, rows: Tensor) -> Self:
        self.left = self.left.rows(rows)
        return self

    def fork(self, texts: Texts, rows: Tensor) -> BlockFork:
        return BlockFork(self.layers, self.left.rows(rows))

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        self.guessing = BlockGuesses(self.left.head, self.left.states, self.left.carried)
        return min(gamma, len(self.left))

    def logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        return self.layers.logits(self.guessing.state(k, texts, last))

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.layers.likeliest(logits)

    def acceptance(self) -> Tensor | None:
        return self.layers.acceptance(self.guessing.newest)

    def draft(self, texts: Texts, request: DraftRequest) -> None:
        """Guess by guess."""


def start_block(layers: ParallelLayers, heads: tuple[int, int], like: Tensor, rows: int, shape: Shape) -> TorchBackend:
    """The backend for so many rows: its keys have (heads, size), and dtype and device of ``like``."""
    cache, slots = head_cache(layers.head.attention is not None, heads, like, rows, shape)
    if host_sync.free(like.device):
        return LazyBlockBackend(layers, cache, slots, shape.width, rows)
    return BlockBackend(layers, cache, slots, shape.width)
