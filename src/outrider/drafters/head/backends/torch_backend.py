"""A feature head run by torch: any number of rows, on any device, in the target's dtype.

The target keeps its states by position, as it keeps its keys and values. So does the head its own keys: at each
commit, whether it drafts or not, it makes those of the newest W tokens again, whose states the target has run since.
So rollback needs no work, and every shape stays constant. On a GPU prompts are read in pieces of one shape, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, Self

import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.embedding_table import EmbeddingTable
from outrider.core.protocols import Shape
from outrider.drafters.head.backend import DraftRequest, Texts
from outrider.drafters.head.layers import KeysValues, Memory

_PIECE = 64
"""Tokens of every row that are read of prompts at once."""


class HeadAttention(Protocol):
    """The attention of a head, of one layer or of several, and what of its KV cache is whose."""

    def store(self, x: Tensor, positions: Tensor, cache: KeysValues, rows: Tensor | None = None) -> None:
        """Keep keys and values of inputs [R, T, ...] at positions [R or 1, T] in ``rows`` [R] of the cache, or all."""

    def memory(self, cache: KeysValues, newest: Tensor, slots: Tensor) -> Memory:
        """What guesses behind positions ``newest`` [B, 1] attend to; ``slots`` [C] are all positions of the cache."""

    def note(self, x: Tensor, positions: Tensor, memory: Memory) -> None:
        """Further guesses attend to a guess that was read as x."""


class RecurrentHead(Protocol):
    """The modules of a head that runs once per guess, at first on the target's states, then on its own."""

    @property
    def attention(self) -> HeadAttention | None: ...

    def seen(self, states: Tensor) -> Tensor:
        """States of the target's layers [..., L, size] -> one state [..., size]."""

    def read_token(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor) -> Tensor:
        """States [B, T, size] and the tokens [B, T] that came after them -> the input of a guess [B, T, ...]."""

    def think(self, x: Tensor, positions: Tensor, memory: Memory | None) -> Tensor:
        """From the input of a guess to the state behind it [B, T, size]."""


class RecurrentLayers(Protocol):
    """A head's modules and its output layer for any number of rows: all that torch and Triton differ in."""

    @property
    def name(self) -> str: ...

    @property
    def head(self) -> RecurrentHead: ...

    def logits(self, state: Tensor) -> Tensor:
        """The output layer: states [B, size] -> [B, N]."""

    def likeliest(self, logits: Tensor) -> Tensor:
        """The token with the highest of logits [B, N] -> [B]."""

    def likeliest_few(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The so many highest of logits [B, N], highest first: log-probabilities and tokens [B, count]."""


class TorchBackend:
    """Runs a feature head for any number of rows: the KV cache of its attention, and the state of the current draft."""

    capturable = True
    branches = True

    def __init__(self, layers: RecurrentLayers, cache: KeysValues | None, slots: Tensor, width: int) -> None:
        self.layers, self.head, self.name = layers, layers.head, layers.name
        self.cache = cache  # [B, Hk, C, D] each; None without attention
        self.slots = slots  # [C]: all positions
        self.width = width  # W: no commit has more tokens

    def admit_all(self, texts: Texts, lengths: Mapping[int, int]) -> None:
        """Side by side, in pieces of one shape, whoever else is there: a row's bits are its own.

        Where a prompt is shorter than others its last token is read again and again, and where there are fewer than
        slots, the first prompt.
        """
        if self.cache is None or not lengths:
            return
        self._clear(lengths)
        last = [(row, length - 2) for row, length in lengths.items() if length > 1]  # drafts read the newest token
        if not last:
            return
        last += last[:1] * (texts.context.rows - len(last))
        rows, ends = (torch.tensor(column, device=self.slots.device) for column in zip(*last, strict=True))
        for first in range(0, max(end for _, end in last) + 1, _PIECE):
            places = first + torch.arange(_PIECE, device=rows.device)
            self._read(texts, rows, torch.minimum(places[None], ends[:, None]))

    def _clear(self, rows: Iterable[int]) -> None:
        for kept in self.cache or ():
            kept.index_fill_(0, torch.tensor(list(rows), device=kept.device), 0)

    @torch.no_grad()
    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        texts.context.append(tokens, count)
        if self.cache is not None:
            start = (texts.newest + 1 - self.width).clamp(min=0)
            self._read(texts, self._all(texts), start[:, None] + torch.arange(self.width, device=start.device))

    def rewind(self, texts: Texts) -> None:
        """Keys behind the end are made again before they are read."""

    def select(self, texts: Texts, rows: Tensor) -> Self:
        self.cache = self._selected(rows)
        return self

    def fork(self, texts: Texts, rows: Tensor) -> TorchFork:
        supposed = self._newest(texts, texts.newest).index_select(0, rows)
        return TorchFork(self.layers, self._selected(rows), self.slots, self.width, supposed)

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        newest = texts.newest
        self.x = self._newest(texts, newest)  # [B, 1, size]: what the next guess comes from
        self.positions = newest[:, None] + torch.arange(gamma, device=newest.device)  # [B, G]
        self.memory: Memory | None = None
        if self.head.attention is not None and self.cache is not None:
            self.memory = self.head.attention.memory(self.cache, newest[:, None], self.slots)
        return gamma

    def logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        return self.layers.logits(self._state(texts, k, last[:, None])[:, 0])

    def branch(self, parents: Tensor, room: int) -> None:
        self.x = self.x.index_select(1, parents)
        if self.memory is not None:
            self.memory.branch(parents, room)

    def branch_logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        return self.layers.logits(self._state(texts, k, last[None])[0])

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.layers.likeliest(logits)

    def likeliest_few(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return self.layers.likeliest_few(logits, count)

    def draft(self, texts: Texts, request: DraftRequest) -> None:
        """Guess by guess."""

    def _state(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        """Behind guess k, drawn after tokens ``last`` [B, T] -> [B, T, size]."""
        position = self.positions[:, k : k + 1].expand(-1, self.x.shape[1])
        if k > 0:
            self.x = self.head.read_token(self.x, texts.embedding, last)
            if self.memory is not None and self.head.attention is not None:
                self.head.attention.note(self.x, position, self.memory)
        self.x = self.head.think(self.x, position, self.memory)
        return self.x

    def _newest(self, texts: Texts, positions: Tensor) -> Tensor:
        """What the head reads at the newest positions [B] -> [B, 1, size]."""
        return self._read(texts, self._all(texts), positions[:, None])

    def _read(self, texts: Texts, rows: Tensor, positions: Tensor) -> Tensor:
        """What the head reads at positions [R, T] of these rows -> [R, T, size]; its keys are kept."""
        tokens = texts.context.tokens[rows[:, None], positions + 1]
        x = self.head.read_token(self.head.seen(texts.states[rows[:, None], positions]), texts.embedding, tokens)
        if self.head.attention is not None and self.cache is not None:
            self.head.attention.store(x, positions, self.cache, rows)
        return x

    def _all(self, texts: Texts) -> Tensor:
        return torch.arange(texts.context.rows, device=self.slots.device)

    def _selected(self, rows: Tensor) -> KeysValues | None:
        if self.cache is None:
            return None
        keys, values = (kept.index_select(0, rows) for kept in self.cache)
        return keys, values


class LazyTorchBackend(TorchBackend):
    """On a CPU: text is read when a draft needs it. Rows that are never drafted for cost nothing.

    A prompt is read in one piece, what follows in pieces of W tokens of all rows, and the newest token as each draft
    begins. So the shapes that a token is read in do not depend on when drafts were asked for, and nor do its bits.
    """

    capturable = branches = False  # how far a row was read is known on the host

    def __init__(self, layers: RecurrentLayers, cache: KeysValues | None, slots: Tensor, width: int, rows: int) -> None:
        super().__init__(layers, cache, slots, width)
        self.prompts: dict[int, int] = {}  # row: tokens of a prompt that was not read yet
        self.read_to = torch.zeros(rows, dtype=torch.int64)  # [B]: positions before this one have been read

    def admit_all(self, texts: Texts, lengths: Mapping[int, int]) -> None:
        self.prompts |= lengths
        for row, length in lengths.items():
            self.read_to[row] = max(0, length - 2)

    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        texts.context.append(tokens, count)

    def rewind(self, texts: Texts) -> None:
        self._read_prompts(texts)  # in the shapes that it would have had
        self.read_to = torch.minimum(self.read_to, texts.newest)

    def select(self, texts: Texts, rows: Tensor) -> Self:
        # The target's rows have changed places already: what was not read yet is read where it is now.
        order = rows.tolist()
        self.prompts = {new: self.prompts[old] for new, old in enumerate(order) if old in self.prompts}
        self.read_to = self.read_to.index_select(0, rows)
        return super().select(texts, rows)

    def fork(self, texts: Texts, rows: Tensor) -> TorchFork:
        self._catch_up(texts)
        return super().fork(texts, rows)

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        self._catch_up(texts)
        return super().begin(texts, gamma)

    @torch.no_grad()
    def _catch_up(self, texts: Texts) -> None:
        """Read all but the newest token of every row."""
        self._read_prompts(texts)
        newest = texts.newest
        behind = 0 if self.cache is None else int(((newest - self.read_to) * texts.context.active).max())
        for _ in range(0, behind, self.width):
            self._read(texts, self._all(texts), self.read_to[:, None] + torch.arange(self.width))
            self.read_to = torch.minimum(self.read_to + self.width, newest)

    def _read_prompts(self, texts: Texts) -> None:
        for row, length in self.prompts.items():
            self._clear([row])
            if length > 1:
                self._read(texts, torch.tensor([row]), self.slots[None, : length - 1])
        self.prompts.clear()


class TorchFork(TorchBackend):
    """A fork: behind its last token the target has no states, and the head's own stand for them."""

    def __init__(
        self, layers: RecurrentLayers, cache: KeysValues | None, slots: Tensor, width: int, supposed: Tensor
    ) -> None:
        super().__init__(layers, cache, slots, width)
        self.supposed = supposed  # [B, 1, size]: what it reads behind the newest token

    @torch.no_grad()
    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        for k in range(tokens.shape[1]):
            self._suppose(texts, tokens[:, k : k + 1], k < count)

    def select(self, texts: Texts, rows: Tensor) -> Self:
        self.supposed = self.supposed.index_select(0, rows)
        return super().select(texts, rows)

    def _newest(self, texts: Texts, positions: Tensor) -> Tensor:
        return self.supposed

    def _suppose(self, texts: Texts, token: Tensor, real: Tensor) -> None:
        """Another token [B, 1] behind rows where real [B]: what the head would read there, and its keys."""
        self.begin(texts, 1)
        read = self.head.read_token(self._state(texts, 0, token), texts.embedding, token)
        self.supposed = torch.where(real[:, None, None], read, self.supposed)
        texts.context.append(token, real.to(torch.int64))
        if self.head.attention is not None and self.cache is not None:
            self.head.attention.store(self.supposed, texts.newest[:, None], self.cache)


def start_torch(layers: RecurrentLayers, heads: tuple[int, int], like: Tensor, rows: int, shape: Shape) -> TorchBackend:
    """The backend for so many rows: its keys have (heads, size), and dtype and device of ``like``."""
    cache, slots = head_cache(layers.head.attention is not None, heads, like, rows, shape)
    if host_sync.free(like.device):
        return LazyTorchBackend(layers, cache, slots, shape.width, rows)
    return TorchBackend(layers, cache, slots, shape.width)


def head_cache(
    attends: bool, heads: tuple[int, int], like: Tensor, rows: int, shape: Shape
) -> tuple[KeysValues | None, Tensor]:
    """An empty KV cache of (heads, size) for so many rows, if there is attention, and all its positions."""
    slots = torch.arange(shape.capacity, device=like.device)
    if not attends:
        return None, slots
    kept, size = heads
    keys, values = torch.zeros((2, rows, kept, shape.capacity, size), dtype=like.dtype, device=like.device)
    return (keys, values), slots
