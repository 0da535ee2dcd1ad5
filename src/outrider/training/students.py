"""Drafts in training: each turns a batch of text into a loss. Heads are in ``head_students.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from outrider.training.data import PADDING, Corpus
from outrider.training.objectives import Objective
from outrider.training.teacher import Teacher


@dataclass(frozen=True)
class Measured:
    """Teacher-forced quality on held-out text, per depth of guess: what acceptance rates are made of."""

    overlap: list[float]  # mean sum-min(p, q): alpha at temperature 1
    agreement: list[float]  # share of positions with the same likeliest token: alpha at temperature 0


class Student(Protocol):
    """A draft in training."""

    @property
    def module(self) -> nn.Module: ...

    def loss(self, batch: Corpus, objective: Objective) -> Tensor:
        """Mean loss over a batch of text."""

    def measure(self, batch: Corpus) -> Measured:
        """Quality on a batch of text."""

    def draw(self, batch: Corpus, random: torch.Generator) -> Tensor:
        """A first guess for every token of a batch after the text before it -> [B, T]; negative where it has none."""


class Vocabulary:
    """The tokens a draft can write: ids of the target [N] and the way back [V], with N for all others."""

    def __init__(self, tokens: Tensor, vocab_size: int, device: torch.device) -> None:
        self.tokens = tokens.to(device)
        self.index = torch.full((vocab_size,), len(tokens), dtype=torch.int64, device=device)
        self.index[self.tokens] = torch.arange(len(tokens), device=device)

    def __len__(self) -> int:
        return len(self.tokens)

    def labels(self, tokens: Tensor) -> Tensor:
        """Index of each token in N, -1 where the draft cannot write it."""
        index = self.index[tokens]
        return torch.where(index < len(self.tokens), index, -1)


@dataclass(frozen=True)
class TokenPositions:
    """The tokens of a batch a draft is judged by: n of them, each with its row and its column in the text [B, T]."""

    rows: Tensor  # [n]
    columns: Tensor  # [n], from 1 on: nothing is guessed about the first token of a text

    @staticmethod
    def of(batch: Corpus, device: torch.device) -> TokenPositions:
        rows, columns = batch.counts[:, 1:].nonzero(as_tuple=True)  # on the text's own device: nothing is waited for
        return TokenPositions(rows.to(device), columns.to(device) + 1)

    def before(self, values: Tensor, back: int = 1) -> Tensor:
        """Of values [B, T, ...] those so many tokens earlier -> [n, ...]; where there are none, any."""
        return values[self.rows, (self.columns - back).clamp(min=0)]


@dataclass(frozen=True)
class Guesses:
    """What a draft says of every token it is judged by, beside what the target says of it."""

    logits: Tensor  # [n, N] of the draft
    p: Tensor  # [n, N] of the target
    labels: Tensor  # [n]: the text's own token as an index into N, -1 if outside
    choice: Tensor  # [n]: the target's likeliest token, likewise
    counts: Tensor  # [n]: 1, or 0 where the text is too young for a guess that deep
    positions: TokenPositions

    def loss(self, objective: Objective) -> Tensor:
        return self._mean(objective(self.logits, self.p, self.labels))

    def overlap(self) -> float:
        return float(self._mean(torch.minimum(self.p, self.logits.float().softmax(-1)).sum(-1)))

    def agreement(self) -> float:
        return float(self._mean((self.logits.argmax(-1) == self.choice).float()))

    def draw(self, tokens: Tensor, like: Tensor, random: torch.Generator) -> Tensor:
        """A token [of N ``tokens``] from each q, put where it stands in the text ``like`` [B, T]; padding elsewhere."""
        chosen = torch.multinomial(self.logits.float().softmax(-1).cpu(), 1, generator=random)[:, 0]
        drawn = torch.full_like(like, PADDING)
        known = self.counts.cpu() > 0
        drawn[self.positions.rows.cpu()[known], self.positions.columns.cpu()[known]] = tokens.cpu()[chosen][known]
        return drawn

    def _mean(self, values: Tensor) -> Tensor:
        return (values * self.counts).sum() / self.counts.sum().clamp(min=1)


@dataclass
class ModelStudent:
    """A small language model over the draft's own vocabulary: N tokens and one for everything else."""

    teacher: Teacher
    model: nn.Module
    vocabulary: Vocabulary

    @property
    def module(self) -> nn.Module:
        return self.model

    def loss(self, batch: Corpus, objective: Objective) -> Tensor:
        return self._guesses(batch).loss(objective)

    @torch.no_grad()
    def measure(self, batch: Corpus) -> Measured:
        guesses = self._guesses(batch)
        return Measured([guesses.overlap()], [guesses.agreement()])

    @torch.no_grad()
    def draw(self, batch: Corpus, random: torch.Generator) -> Tensor:
        return self._guesses(batch).draw(self.vocabulary.tokens, batch.tokens, random)

    def _guesses(self, batch: Corpus) -> Guesses:
        positions = TokenPositions.of(batch, self.teacher.device)
        batch = batch.to(self.teacher.device)
        tokens, index = batch.tokens, self.vocabulary.index
        told = self.teacher.read(tokens, batch.sources)
        p = told.probabilities(self.vocabulary.tokens, positions.before)
        given = {"input_ids": index[tokens.clamp(min=0)[:, :-1]], "use_cache": False}
        if batch.sources is not None:
            given |= {
                "input_ids": index[batch.sources.clamp(min=0)], "attention_mask": (batch.sources >= 0).long(),
                "decoder_input_ids": given["input_ids"],
            }  # fmt: skip
        logits = positions.before(self.model(**given).logits)[:, : len(self.vocabulary)]
        labels = self.vocabulary.labels(positions.before(tokens, 0).clamp(min=0))
        choice = self.vocabulary.labels(told.likeliest(positions.before))
        return Guesses(logits, p, labels, choice, torch.ones_like(positions.rows, dtype=torch.float32), positions)
