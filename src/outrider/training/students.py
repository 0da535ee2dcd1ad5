"""What can be trained: heads on the target's states, and small models. Each turns a batch of text into a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from outrider.drafters.head_layers import Head, Memory
from outrider.models.teacher import Teacher
from outrider.training.data import PADDING, Corpus
from outrider.training.objectives import Objective


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
class Guesses:
    """What a draft says at all positions of a batch, beside what the target says there."""

    logits: Tensor  # [B, L, N] of the draft
    p: Tensor  # [B, L, N] of the target
    labels: Tensor  # [B, L]: the text's own token as an index into N, -1 if outside
    choice: Tensor  # [B, L]: the target's likeliest token, likewise
    counts: Tensor  # [B, L]: 1 where the text counts, 0 where it was given, and for padding
    first: int  # the place in the text of the token that the first of them is about

    def loss(self, objective: Objective) -> Tensor:
        return self._mean(objective(self.logits, self.p, self.labels))

    def overlap(self) -> float:
        return float(self._mean(torch.minimum(self.p, self.logits.float().softmax(-1)).sum(-1)))

    def agreement(self) -> float:
        return float(self._mean((self.logits.argmax(-1) == self.choice).float()))

    def draw(self, tokens: Tensor, like: Tensor, random: torch.Generator) -> Tensor:
        """A token [of N ``tokens``] from each q, put where it stands in the text ``like`` [B, T]; padding elsewhere."""
        q = self.logits.float().softmax(-1).cpu()
        chosen = torch.multinomial(q.flatten(0, 1), 1, generator=random).reshape(q.shape[:2])
        drawn = torch.full_like(like, PADDING)
        known = min(drawn.shape[1] - self.first, chosen.shape[1])
        drawn[:, self.first : self.first + known] = tokens.cpu()[chosen][:, :known]
        return torch.where(like >= 0, drawn, PADDING)

    def _mean(self, values: Tensor) -> Tensor:
        return (values * self.counts).sum() / self.counts.sum().clamp(min=1)


@dataclass
class HeadStudent:
    """A feature or blockwise head, run ``depth`` guesses deep on its own features over the text's own tokens.

    ``decay`` weighs deeper guesses less: they only count when the ones before were accepted.
    """

    teacher: Teacher
    head: Head
    vocabulary: Vocabulary
    depth: int = 5
    decay: float = 0.8

    @property
    def module(self) -> nn.Module:
        return self.head

    def loss(self, batch: Corpus, objective: Objective) -> Tensor:
        total = torch.zeros((), device=self.teacher.device)
        for k, guesses in enumerate(self._guesses(batch)):
            total = total + self.decay**k * guesses.loss(objective)
        return total

    @torch.no_grad()
    def measure(self, batch: Corpus) -> Measured:
        guesses = self._guesses(batch)
        return Measured([g.overlap() for g in guesses], [g.agreement() for g in guesses])

    @torch.no_grad()
    def draw(self, batch: Corpus, random: torch.Generator) -> Tensor:
        return self._guesses(batch)[0].draw(self.vocabulary.tokens, batch.tokens, random)

    def _guesses(self, batch: Corpus) -> list[Guesses]:
        """For each depth k, at all positions."""
        batch = batch.to(self.teacher.device)
        tokens = batch.tokens  # [B, T]
        judged = batch.counts  # [B, T]
        if batch.sources is not None:  # short texts: their last positions count as well, with padding behind them
            tokens = nn.functional.pad(tokens, (0, self.depth), value=PADDING)
            judged = nn.functional.pad(judged, (0, self.depth))
        told = self.teacher.read(tokens, batch.sources, self.head.config.layers)
        assert told.hidden is not None and told.states is not None
        p = told.probabilities(self.vocabulary.tokens)  # [B, T, N]
        embedded = nn.functional.embedding(tokens.clamp(min=0), self.teacher.model.embedding).to(self._dtype)
        labels, choice = self.vocabulary.labels(tokens.clamp(min=0)), self.vocabulary.labels(told.likeliest())
        output = self.teacher.model.unembedding[self.vocabulary.tokens].t().to(self._dtype)  # [size, N]
        length = tokens.shape[1] - self.depth - 1  # positions with all of their guesses inside the text
        if self.head.config.kind == "blockwise":
            states = self._fan(told.hidden[:, :length].to(self._dtype), embedded)
        else:
            states = self._chain(told.states[:, :length].to(self._dtype), embedded)
        guesses = []
        for k, state in enumerate(states, 1):
            here, next_one = slice(k, k + length), slice(k + 1, k + 1 + length)
            counts = judged[:, next_one].float()
            logits = state @ output
            guesses.append(Guesses(logits, p[:, here], labels[:, next_one], choice[:, here], counts, k + 1))
        return guesses

    def _fan(self, hidden: Tensor, embedded: Tensor) -> list[Tensor]:
        """Blockwise: the states behind all guesses at once."""
        states = self.head.fan(hidden, embedded[:, 1 : hidden.shape[1] + 1])
        return list(states.unbind(2))[: self.depth]

    def _chain(self, seen: Tensor, embedded: Tensor) -> list[Tensor]:
        """Feature: as in drafting, every guess reads the state behind the one before and looks back over the text.

        All positions are drafted from at the same time: place i sees the text's keys up to i and its own guesses'.
        """
        length = seen.shape[1]
        place = torch.arange(length, device=seen.device)[None]  # [1, T]
        x = self.head.read(self.head.seen(seen), embedded[:, 1 : length + 1])
        attention, memory = self.head.attention, None
        if attention is not None:
            back = place[0, :, None] - place[0]  # [T, T]
            visible = (back >= 0) & (back < self.head.config.window)
            memory = Memory(*attention.remember(x, place), visible[None, None, None])
        states = []
        for k in range(1, self.depth + 1):
            if k > 1:
                x = self.head.read(x, embedded[:, k : k + length])
                if attention is not None and memory is not None:
                    memory.own.append(attention.remember(x, place + k - 1))
            x = self.head.think(x, place + k - 1, memory)
            states.append(x)
        return states

    @property
    def _dtype(self) -> torch.dtype:
        return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32


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
        batch = batch.to(self.teacher.device)
        tokens, index = batch.tokens, self.vocabulary.index
        told = self.teacher.read(tokens, batch.sources)
        p = told.probabilities(self.vocabulary.tokens)[:, :-1]
        given = {"input_ids": index[tokens.clamp(min=0)[:, :-1]], "use_cache": False}
        if batch.sources is not None:
            given |= {
                "input_ids": index[batch.sources.clamp(min=0)], "attention_mask": (batch.sources >= 0).long(),
                "decoder_input_ids": given["input_ids"],
            }  # fmt: skip
        logits = self.model(**given).logits[..., : len(self.vocabulary)]
        labels = self.vocabulary.labels(tokens.clamp(min=0))[:, 1:]
        choice = self.vocabulary.labels(told.likeliest())[:, :-1]
        return Guesses(logits, p, labels, choice, batch.counts[:, 1:].float(), 1)
