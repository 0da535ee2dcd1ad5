"""A language model small enough to enumerate: logits are a fixed random function of the last few tokens.

For tests, examples and proofs: float64, any vocabulary, no cache to get wrong, exact distributions at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from outrider.core.context import Context
from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.core.token_tree import ROOT, TokenTree
from outrider.errors import BadOption


class ToyModel:
    """p(x | last ``order`` tokens) from a table drawn once with ``seed``; ``sharpness`` scales the logits."""

    max_length: int | None = None
    encoder_decoder = False

    def __init__(self, vocab_size: int = 8, order: int = 2, seed: int = 0, sharpness: float = 1.5) -> None:
        self.vocab_size, self.order = vocab_size, order
        self.device = torch.device("cpu")
        generator = torch.Generator().manual_seed(seed)
        states = vocab_size**order
        self.table = torch.randn((states, vocab_size), generator=generator, dtype=torch.float64) * sharpness

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(self.vocab_size, self.device, self.max_length, torch.float64, "toy", runs_trees=True)

    def near(self, distance: float, seed: int = 1) -> ToyModel:
        """A model like this one with noise on its logits: a drafter of a chosen quality."""
        other = ToyModel(self.vocab_size, self.order, seed)
        other.table = self.table + distance * other.table
        return other

    def states(self, tokens: Tensor) -> Tensor:
        """The row of ``table`` that holds after every token of [..., T]; before the start is token 0."""
        padded = torch.nn.functional.pad(tokens, (self.order - 1, 0))
        state = torch.zeros_like(tokens)
        for k in range(self.order):
            state = state * self.vocab_size + padded[..., k : k + tokens.shape[-1]]
        return state

    def start(self, rows: int, shape: Shape) -> ToySession:
        return ToySession(self, rows, shape)


class ToySession:
    """The obvious session: keeps the tokens, computes everything afresh. The reference for all others."""

    def __init__(self, model: ToyModel, rows: int, shape: Shape) -> None:
        self.model, self.vocab_size = model, model.vocab_size
        self.context = Context(rows, shape.capacity, model.device)
        self.tail = torch.zeros((rows, 0), dtype=torch.int64)
        self.tree = TokenTree((), ())
        self.hidden: Tensor | None = None
        self.states: Tensor | None = None
        self.embedding: EmbeddingTable | None = None
        self.unembedding: EmbeddingTable | None = None

    @property
    def device(self) -> torch.device:
        return self.model.device

    def keep_states(self, layers: Sequence[int]) -> None:
        raise BadOption("a toy has no layers; use a draft that reads none")

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.context.admit(row, prompt)

    def release(self, row: int) -> None:
        self.context.release(row)

    def score(self, tail: Tensor) -> Tensor:
        self.tail = tail
        self.context.write_scratch(tail)
        back = self.model.order - 1  # earlier tokens the first state depends on
        place = self.context.positions(back + 1 + tail.shape[1], offset=-1 - back)  # [B, back + G + 1]
        window = self.context.tokens.gather(1, place.clamp(min=0)) * (place >= 0)
        return self.model.table[self.model.states(window)[:, back:]]

    def extend(self, tokens: Tensor) -> Tensor:
        self.tail = torch.cat([self.tail, tokens], 1)
        return self.score(self.tail)[:, -tokens.shape[1] :]

    def commit(self, tokens: Tensor, count: Tensor, follows: bool = True) -> None:
        self.context.append(tokens, count)

    def score_tree(self, tree: TokenTree) -> Tensor:
        self.tree, behind = tree, range(ROOT, len(tree))
        logits = [self.score(torch.tensor([tree.text(node)], dtype=torch.int64))[:, -1] for node in behind]
        return torch.stack(logits, 1)

    def commit_path(self, path: Sequence[int], token: int) -> None:
        tokens = [*(self.tree.tokens[node] for node in path), token]
        self.commit(torch.tensor([tokens]), torch.tensor([len(tokens)]))

    def fork(self, rows: Tensor) -> ToySession:
        other = copy(self)
        other.context = copy(self.context)
        other.select(rows)
        return other

    def rewind(self, lengths: Tensor) -> None:
        self.context.rewind(lengths)

    def select(self, rows: Tensor) -> None:
        self.context.select(rows)
        self.tail = self.tail.index_select(0, rows)
