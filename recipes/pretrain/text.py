"""Text on the device: tokens of documents in blocks, and of pairs of sentences in batches of similar lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from outrider.errors import require

IGNORED = -100
"""The label of a position that does not count."""


def train_tokenizer(
    texts: Iterable[str], vocab: int, special: Sequence[str], *, words_alike: bool = False, end: str | None = None
) -> Tokenizer:
    """Byte-level BPE: any text can be written, and comes back as it was.

    words_alike: the first word of a text gets the tokens it would have in the middle. end: put after every text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=words_alike)
    letters = decoders.ByteLevel()
    tokenizer.decoder = decoders.Sequence([letters, decoders.Strip(" ", 1, 0)]) if words_alike else letters
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if end is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
        )
    return tokenizer


@dataclass(frozen=True)
class Ragged:
    """Sequences of many lengths, one after another on the device."""

    flat: Tensor  # [N] int64
    starts: Tensor  # [M] of each sequence in flat
    lengths: Tensor  # [M]
    sizes: np.ndarray  # the lengths again, on the host: shapes are decided without asking the device

    def __len__(self) -> int:
        return len(self.sizes)

    @staticmethod
    def of(rows: Sequence[np.ndarray], device: torch.device) -> Ragged:
        require(len(rows) > 0, "the data is empty: no text was found in it")
        sizes = np.array([len(r) for r in rows], dtype=np.int64)
        flat = torch.from_numpy(np.concatenate(rows).astype(np.int64)).to(device)
        starts = torch.from_numpy(np.cumsum(sizes) - sizes).to(device)
        return Ragged(flat, starts, torch.from_numpy(sizes).to(device), sizes)

    def select(self, index: np.ndarray) -> Ragged:
        chosen = torch.from_numpy(index).to(self.flat.device)
        return Ragged(self.flat, self.starts[chosen], self.lengths[chosen], self.sizes[index])

    def join(self, other: Ragged) -> Ragged:
        starts = torch.cat([self.starts, other.starts + len(self.flat)])
        lengths, sizes = torch.cat([self.lengths, other.lengths]), np.concatenate([self.sizes, other.sizes])
        return Ragged(torch.cat([self.flat, other.flat]), starts, lengths, sizes)

    def rows(self, index: Tensor, width: int, padding: int) -> Tensor:
        """Sequences index [B], cut or padded at the end -> [B, width]."""
        place = torch.arange(width, device=self.flat.device)
        at = (self.starts[index, None] + place).clamp(max=len(self.flat) - 1)
        return torch.where(place < self.lengths[index, None], self.flat[at], padding)


def encode(tokenizer: Tokenizer, texts: Sequence[str], *, special: bool = False, piece: int = 4096) -> list[np.ndarray]:
    """Token ids of many texts, by as many threads as the tokenizers library takes."""
    rows: list[np.ndarray] = []
    for start in range(0, len(texts), piece):
        batch = tokenizer.encode_batch_fast(list(texts[start : start + piece]), add_special_tokens=special)
        rows.extend(np.array(e.ids, dtype=np.int32) for e in batch)
    return rows


@dataclass(frozen=True)
class Batch:
    """What a model is called with, what it should say, and how many tokens that is."""

    inputs: dict[str, Tensor]
    labels: Tensor  # [B, T], IGNORED where nothing is to be said
    tokens: int


class Data(Protocol):
    """Training text: the batch of a step follows from the seed and the step alone."""

    def batch(self, step: int) -> Batch: ...


class Blocks:
    """Running text in blocks of equal length: each pass is a new permutation."""

    def __init__(self, stream: Tensor, block: int, rows: int, seed: int) -> None:
        require(
            len(stream) > block,
            f"the data has {len(stream)} tokens, less than one block of {block}; give more text, or a smaller --block",
        )
        self.blocks = stream.unfold(0, block + 1, block)  # [M, block + 1]: the last token of one begins the next
        self.rows, self.seed = min(rows, len(self.blocks)), seed
        self.turns = len(self.blocks) // self.rows
        self._turn, self._order = -1, torch.zeros(0)

    def batch(self, step: int) -> Batch:
        turn, place = divmod(step, self.turns)
        if turn != self._turn:
            order = torch.randperm(len(self.blocks), generator=torch.Generator().manual_seed(self.seed * 7919 + turn))
            self._turn, self._order = turn, order.to(self.blocks.device)
        chosen = self.blocks[self._order[place * self.rows : (place + 1) * self.rows]]
        return _running(chosen)

    def in_order(self) -> Iterator[Batch]:
        """All of it once, for measuring."""
        for start in range(0, len(self.blocks), self.rows):
            yield _running(self.blocks[start : start + self.rows])


def _running(blocks: Tensor) -> Batch:
    return Batch({"input_ids": blocks[:, :-1]}, blocks[:, 1:], blocks[:, 1:].numel())


class Pairs:
    """Sources and targets in batches of similar lengths, so that little of a batch is padding.

    A batch holds at most ``budget`` positions, source and target together. Each pass makes new batches of the same
    lengths and takes them in a new order. ``start`` begins every target.
    """

    def __init__(self, sources: Ragged, targets: Ragged, *, start: int, padding: int, budget: int, seed: int) -> None:
        require(len(sources) == len(targets), "there must be as many sources as targets")
        self.sources, self.targets = sources, targets
        self.start, self.padding, self.budget, self.seed = start, padding, budget, seed
        self._turn, self._first, self._until = -1, 0, 0
        self._index = torch.zeros(0)
        self._cuts: list[tuple[int, int, int, int]] = []

    def batch(self, step: int) -> Batch:
        if step < self._first:
            self._turn, self._first, self._until = -1, 0, 0
        while step >= self._until:
            self._turn, self._first = self._turn + 1, self._until
            order = self._plan(self._turn)
            self._until = self._first + len(self._cuts)
            self._index = torch.from_numpy(order).to(self.sources.flat.device)
        return self._make(self._cuts[step - self._first])

    def in_order(self) -> Iterator[Batch]:
        """All of it once, for measuring."""
        order = self._plan(0)
        self._turn, self._first, self._until = -1, 0, 0
        self._index = torch.from_numpy(order).to(self.sources.flat.device)
        for cut in self._cuts:
            yield self._make(cut)

    def _plan(self, turn: int) -> np.ndarray:
        """The order of the pairs in this pass, and where it is cut into batches (first, last, widths)."""
        random = np.random.default_rng([self.seed, turn])
        order = random.permutation(len(self.sources))
        source, target = (_eights(r.sizes[order]) for r in (self.sources, self.targets))
        # Along rising target lengths the source lengths go up, then down, then up: neighbours are always alike.
        swing = np.where((target // 8) % 2 == 0, source, -source)
        arranged = np.lexsort((swing, target))
        order, source, target = order[arranged], source[arranged], target[arranged]
        cuts: list[tuple[int, int, int, int]] = []
        first = 0
        while first < len(order):
            last = first + max(1, self.budget // int(source[first] + target[first]))
            widest = int(source[first:last].max() + target[first:last].max())
            last = min(len(order), first + max(1, min(last - first, self.budget // widest)))
            cuts.append((first, last, int(source[first:last].max()), int(target[first:last].max())))
            first = last
        self._cuts = [cuts[i] for i in random.permutation(len(cuts))]
        self._counts = {c[0]: int(self.targets.sizes[order[c[0] : c[1]]].sum()) for c in cuts}
        return order

    def _make(self, cut: tuple[int, int, int, int]) -> Batch:
        first, last, wide, long = cut
        index = self._index[first:last]
        source = self.sources.rows(index, wide, self.padding)
        present = torch.arange(wide, device=source.device) < self.sources.lengths[index, None]
        labels = self.targets.rows(index, long, IGNORED)
        told = torch.where(labels == IGNORED, self.padding, labels)
        told = torch.cat([told.new_full((len(told), 1), self.start), told[:, :-1]], 1)
        inputs = {"input_ids": source, "attention_mask": present.long(), "decoder_input_ids": told}
        return Batch(inputs, labels, self._counts[first])


def _eights(lengths: np.ndarray) -> np.ndarray:
    """Up to the next multiple of eight: few shapes, and those that matrix units like."""
    return (lengths + 7) // 8 * 8
