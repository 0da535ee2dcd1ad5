"""Unigram, bigram and k-gram tables with back-off: the papers' drafters of negligible cost.

A fitted table holds, for every context of up to k-1 tokens seen in a corpus, the counts of what followed.
The longest context that was seen decides; shorter ones are the back-off. The online drafter needs no corpus:
it counts what followed in the prompt and in the text generated so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.protocols import DraftSession, Session, Shape
from outrider.drafters.lookup import Followers, LookupSession
from outrider.drafters.matching import Tokens, longest_matches
from outrider.errors import BadOption, ModelCorrupt, ModelNotFound, require

_FOLLOWERS = 32
"""Most frequent followers kept per context. The rest has q = 0, which costs acceptance, never exactness."""

_BASE = 0x9E3779B97F4A7C15 - (1 << 64)
_MASK = (1 << 64) - 1


def _fold(tokens: Iterable[Tensor], like: Tensor) -> Tensor:
    """A 64-bit key for a context of tokens, newest last. A collision only mixes two contexts' counts."""
    key = torch.zeros_like(like)
    for token in tokens:
        key = (key ^ (token + 1)) * _BASE
    return key


@dataclass(frozen=True)
class NgramTable:
    """Counts of a corpus: a dense unigram vector, and per order sorted context keys with their followers."""

    vocab_size: int
    unigram: Tensor  # [V] float32 counts
    keys: tuple[Tensor, ...]  # per order 2..k: [N] sorted int64
    followers: tuple[Tensor, ...]  # [N, F] int32 tokens
    counts: tuple[Tensor, ...]  # [N, F] float32, zero where there are fewer

    @property
    def order(self) -> int:
        return len(self.keys) + 1

    @cached_property
    def on_host(self) -> _HostTable:
        """The same for a host that looks contexts up one by one."""
        return _HostTable(self)

    @staticmethod
    def fit(texts: Iterable[Sequence[int]], vocab_size: int, order: int = 3) -> NgramTable:
        """Count token sequences; contexts never run across two of them."""
        require(1 <= order <= 8, f"order must be between 1 and 8, got {order}")
        sequences = [torch.as_tensor(np.asarray(t), dtype=torch.int64) for t in texts if len(t)]
        require(bool(sequences), "the n-gram table needs some text to count: none was given")
        everything = torch.cat(sequences)
        require(
            int(everything.min()) >= 0 and int(everything.max()) < vocab_size,
            f"token ids must be between 0 and {vocab_size - 1}, got {int(everything.min())}..{int(everything.max())}",
        )
        unigram = torch.bincount(everything, minlength=vocab_size).to(torch.float32)
        tables = [_count(sequences, size) for size in range(1, order)]
        return NgramTable(vocab_size, unigram, *(tuple(t[i] for t in tables) for i in range(3)))

    def save(self, path: str | Path) -> None:
        tensors = {"unigram": self.unigram}
        for i, (k, f, c) in enumerate(zip(self.keys, self.followers, self.counts, strict=True)):
            tensors |= {f"keys.{i}": k, f"followers.{i}": f, f"counts.{i}": c}
        save_file(tensors, str(path), {"outrider": json.dumps({"kind": "ngram", "orders": len(self.keys)})})

    @staticmethod
    def load(path: str | Path) -> NgramTable:
        require(
            Path(path).is_file(),
            f"no n-gram table at {path}; make one with NgramTable.fit(...).save(path)",
            ModelNotFound,
        )
        try:
            with safe_open(str(path), framework="pt") as file:
                orders = json.loads((file.metadata() or {})["outrider"])["orders"]
                unigram = file.get_tensor("unigram")
                rows = [
                    tuple(file.get_tensor(f"{n}.{i}") for i in range(orders)) for n in ("keys", "followers", "counts")
                ]
        except (SafetensorError, KeyError, ValueError) as error:
            raise ModelCorrupt(f"{path} is not an n-gram table of Outrider ({error}); fit it again") from error
        return NgramTable(unigram.shape[0], unigram, *rows)

    def to(self, device: torch.device) -> NgramTable:
        if device == self.unigram.device:
            return self
        move = [tuple(t.to(device) for t in group) for group in (self.keys, self.followers, self.counts)]
        return NgramTable(self.vocab_size, self.unigram.to(device), *move)


def _count(sequences: list[Tensor], context: int) -> tuple[Tensor, Tensor, Tensor]:
    """All contexts of ``context`` tokens with their most frequent followers."""
    windows = [s.unfold(0, context + 1, 1) for s in sequences if len(s) > context]
    if not windows:
        return torch.zeros(0, dtype=torch.int64), torch.zeros((0, 1), dtype=torch.int32), torch.zeros((0, 1))
    grams = torch.cat(windows)  # [M, context + 1]
    key, token = _fold(grams[:, :-1].unbind(1), grams[:, 0]), grams[:, -1]
    pairs, number = np.unique(np.stack([key.numpy(), token.numpy()], 1), axis=0, return_counts=True)
    pairs = pairs[order := np.lexsort((-number, pairs[:, 0]))]  # by context, most frequent first
    number = number[order]
    keys, first = np.unique(pairs[:, 0], return_index=True)
    rank = np.arange(len(pairs)) - np.repeat(first, np.diff([*first, len(pairs)]))
    kept = rank < _FOLLOWERS
    row = np.searchsorted(keys, pairs[kept, 0])
    width = int(rank[kept].max()) + 1
    followers = torch.zeros((len(keys), width), dtype=torch.int32)
    counts = torch.zeros((len(keys), width), dtype=torch.float32)
    followers[row, rank[kept]] = torch.as_tensor(pairs[kept, 1], dtype=torch.int32)
    counts[row, rank[kept]] = torch.as_tensor(number[kept], dtype=torch.float32)
    return torch.as_tensor(keys), followers, counts


class Ngram:
    """Drafts from a fitted table, or online (``table=None``) from what the row itself has shown so far."""

    def __init__(self, table: NgramTable | None = None, order: int = 4) -> None:
        require(1 <= order <= 16, f"order must be between 1 and 16, got {order}")
        self.table, self.order = table, order if table is None else table.order
        self.name = "ngram" if table is None else f"{self.order}-gram"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        if self.table is None:
            return _OnlineSession(self.order, rows, shape, target)
        if self.table.vocab_size > target.vocab_size:
            raise BadOption(
                f"the n-gram table has {self.table.vocab_size} tokens, the target only {target.vocab_size}; "
                "fit it with the target's own tokenizer"
            )
        return _TableSession(self.table.to(target.device), rows, shape, target)


class _HostTable:
    """The followers of each context, ascending, found by its key in a dictionary."""

    def __init__(self, table: NgramTable) -> None:
        self.orders = []
        for keys, followers, counts in zip(table.keys, table.followers, table.counts, strict=True):
            order = followers.sort(1)
            tokens, found = order.values.numpy(), counts.gather(1, order.indices).numpy()
            likeliest = tokens[np.arange(len(tokens)), found.argmax(1)]  # the first of equals
            places = {key: place for place, key in enumerate(keys.tolist())}
            self.orders.append((places, tokens, found, likeliest.tolist()))
        self.unigram = Followers(None, table.unigram.numpy())
        self.knows_any = bool(table.unigram.max() > 0)
        self.likeliest = self.unigram.likeliest

    def find(self, text: Tokens, guesses: Sequence[int]) -> tuple[int, int] | None:
        """The longest context that was seen: its order and its place there; None: there is only the unigram."""
        most = len(self.orders)
        tail = [*text[max(0, len(text) + len(guesses) - most) :].tolist(), *guesses[-most:]] if most else []
        for size in range(len(tail), 0, -1):
            key = 0
            for token in tail[-size:]:
                key = ((key ^ (token + 1)) * _BASE) & _MASK
            place = self.orders[size - 1][0].get(key - (1 << 64) if key >> 63 else key)
            if place is not None:
                return size - 1, place
        return None


class _TableSession(LookupSession):
    capturable = True

    def __init__(self, table: NgramTable, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.table = table
        self.unigram = torch.nn.functional.pad(table.unigram, (0, target.vocab_size - table.vocab_size))

    def weights(self, guesses: Tensor) -> Tensor:
        context = self.context.ahead(guesses)
        weights = self.unigram.expand(context.rows, -1)
        for size, (keys, followers, counts) in enumerate(
            zip(self.table.keys, self.table.followers, self.table.counts, strict=True), start=1
        ):
            if not len(keys):
                continue
            last = context.read((context.lengths - size).clamp(min=0), size)  # [B, size]
            key = _fold(last.unbind(1), last[:, 0])
            at = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
            seen = (keys[at] == key) & (context.lengths >= size)
            known = torch.zeros_like(weights).scatter_add_(1, followers[at].to(torch.int64), counts[at])
            weights = torch.where(seen[:, None], known, weights)
        return weights

    def followers(self, text: Tokens, guesses: Sequence[int]) -> Followers | None:
        table = self.table.on_host
        if (found := table.find(text, guesses)) is None:
            return table.unigram if table.knows_any else None
        _, followers, counts, _ = table.orders[found[0]]
        known = counts[found[1]] > 0
        return Followers(followers[found[1]][known], counts[found[1]][known])

    def likeliest(self, text: Tokens, guesses: Sequence[int]) -> int | None:
        table = self.table.on_host
        if (found := table.find(text, guesses)) is not None:
            return int(table.orders[found[0]][3][found[1]])
        return table.likeliest if table.knows_any else None


class _OnlineSession(LookupSession):
    """k-gram counts of the row's own text, found by matching rather than kept in a table.

    Back-off ends at one token of context: what is frequent in a short text says little about what comes next.
    """

    capturable = True

    def __init__(self, order: int, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.order = order

    def weights(self, guesses: Tensor) -> Tensor:
        context = self.context.ahead(guesses)
        place = torch.arange(1, context.capacity, device=context.device)  # of the follower
        known = place < self.context.lengths[:, None]  # guesses are not evidence
        running = known
        votes = (known if self.order == 1 else torch.zeros_like(known)).to(torch.float32)
        for back in range(self.order - 1):
            last = context.tokens.gather(1, (context.lengths - 1 - back).clamp(min=0)[:, None])
            shifted = torch.nn.functional.pad(context.tokens[:, :-1], (back, 0), value=-1)[:, : len(place)]
            running = running & (shifted == last)
            longer = running.any(1, keepdim=True)  # the longest context with any evidence decides
            votes = torch.where(longer, running.to(torch.float32), votes)
        weights = torch.zeros((context.rows, self.vocab_size), device=context.device)
        return weights.scatter_add_(1, context.tokens[:, 1:], votes)

    def followers(self, text: Tokens, guesses: Sequence[int]) -> Followers | None:
        if self.order == 1:
            after = text[1:]
        else:
            suffix = np.array([*text[-self.order :].tolist(), *guesses][: -self.order : -1])
            length, places = longest_matches(text, suffix)
            after = text[places + 1] if length else text[:0]
        tokens, counts = np.unique(after, return_counts=True)
        return Followers(tokens, counts.astype(np.float32)) if len(tokens) else None
