"""Drafts in training, heads and small models: each turns a batch of text into a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from outrider.drafters.head.layers import Head, Memory
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
class HeadStudent:
    """A feature or blockwise head, run ``depth`` guesses deep on its own features over the text's own tokens.

    ``decay`` weighs deeper guesses less: they only count when the ones before were accepted.
    """

    teacher: Teacher
    head: Head
    vocabulary: Vocabulary
    depth: int = 5
    decay: float = 0.7

    @property
    def module(self) -> nn.Module:
        return self.head

    def loss(self, batch: Corpus, objective: Objective) -> Tensor:
        total = torch.zeros((), device=self.teacher.device)
        for k, guesses in enumerate(self.guesses(batch)):
            total = total + self.decay**k * guesses.loss(objective)
        return total

    @torch.no_grad()
    def measure(self, batch: Corpus) -> Measured:
        guesses = self.guesses(batch)
        return Measured([g.overlap() for g in guesses], [g.agreement() for g in guesses])

    @torch.no_grad()
    def draw(self, batch: Corpus, random: torch.Generator) -> Tensor:
        return self.guesses(batch)[0].draw(self.vocabulary.tokens, batch.tokens, random)

    def guesses(self, batch: Corpus) -> list[Guesses]:
        """For each depth k, of all tokens that count: most work is over the vocabulary, and prompts need none of it."""
        positions = TokenPositions.of(batch, self.teacher.device)
        batch = batch.to(self.teacher.device)
        tokens = batch.tokens  # [B, T]
        told = self.teacher.read(tokens, batch.sources, self.head.config.layers)
        assert told.hidden is not None and told.states is not None
        p = told.probabilities(self.vocabulary.tokens, positions.before)  # [n, N]
        labels = self.vocabulary.labels(positions.before(tokens, 0).clamp(min=0))
        choice = self.vocabulary.labels(told.likeliest(positions.before))
        embedded = nn.functional.embedding(tokens.clamp(min=0), self.teacher.model.embedding).to(self._dtype)
        embedded = nn.functional.pad(embedded, (0, 0, 0, self.depth))  # behind the end, where nothing counts
        output = self.teacher.model.unembedding[self.vocabulary.tokens].t().to(self._dtype)  # [size, N]
        if self.head.config.blockwise:
            states = self._fan(told.hidden.to(self._dtype), embedded)
        elif self.head.config.parallel:
            states = self._parallel(told.states.to(self._dtype), embedded)
        else:
            states = self._chain(told.states.to(self._dtype), embedded)
        guesses = []
        for k, state in enumerate(states, 1):  # of a draft that began k + 1 tokens before the one in question
            counts = (positions.columns > k).float()
            logits = positions.before(state, k + 1) @ output
            guesses.append(Guesses(logits, p, labels, choice, counts, positions))
        return guesses

    def _fan(self, hidden: Tensor, embedded: Tensor) -> list[Tensor]:
        """Blockwise: the states behind all guesses at once."""
        states = self.head.fan(hidden, embedded[:, 1 : hidden.shape[1] + 1])
        return list(states.unbind(2))[: self.depth]

    def _parallel(self, seen: Tensor, embedded: Tensor) -> list[Tensor]:
        """Block: every guess from the same state of the target, then corrected by the text's own tokens before it."""
        length = seen.shape[1]
        place = torch.arange(length, device=seen.device)[None]  # [1, T]
        seen = self.head.seen(seen)
        inputs = self.head.spread(seen, embedded[:, 1 : length + 1])  # [B, T, G, size]
        memory = self._memory(inputs[:, :, 0], place)
        corrector, states = self.head.corrector, []
        assert corrector is not None
        z = corrector.begin(seen)
        for k in range(1, min(self.depth, inputs.shape[2]) + 1):
            x = self.head.think(inputs[:, :, k - 1], place + k - 1, memory)
            z = corrector(x, embedded[:, k : k + length], z)
            states.append(x + corrector.out(z))
        return states

    def _chain(self, seen: Tensor, embedded: Tensor) -> list[Tensor]:
        """Feature: as in drafting, every guess reads the state behind the one before and looks back over the text.

        All positions are drafted from at the same time: place i sees the text's keys up to i and its own guesses'.
        """
        length = seen.shape[1]
        place = torch.arange(length, device=seen.device)[None]  # [1, T]
        x = self.head.read(self.head.seen(seen), embedded[:, 1 : length + 1])
        attention, memory = self.head.attention, self._memory(x, place)
        states = []
        for k in range(1, self.depth + 1):
            if k > 1:
                x = self.head.read(x, embedded[:, k : k + length])
                if attention is not None and memory is not None:
                    memory.own.append(attention.remember(x, place + k - 1))
            x = self.head.think(x, place + k - 1, memory)
            states.append(x)
        return states

    def _memory(self, x: Tensor, place: Tensor) -> Memory | None:
        """What guesses attend to: of what was read [B, T, size], place i sees all up to i."""
        if self.head.attention is None:
            return None
        back = place[0, :, None] - place[0]  # [T, T]
        visible = (back >= 0) & (back < self.head.config.window)
        return Memory(*self.head.attention.remember(x, place), visible[None, None, None])

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
