"""What can be trained: heads on the target's states, and small models. Each turns a batch of text into a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from outrider.drafters.head_layers import Head, Memory
from outrider.models.teacher import Teacher
from outrider.training.data import Corpus
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
        for k, (logits, p, label) in enumerate(self._guesses(batch)):
            total = total + self.decay**k * objective(logits, p, label).mean()
        return total

    @torch.no_grad()
    def measure(self, batch: Corpus) -> Measured:
        overlap, agreement = [], []
        tokens = batch.tokens.to(self.teacher.device)
        sources = None if batch.sources is None else batch.sources.to(self.teacher.device)
        choice = self.vocabulary.labels(self.teacher.likeliest(self.teacher.hidden(tokens, sources)))  # [B, T]
        for k, (logits, p, _) in enumerate(self._guesses(batch), 1):
            overlap.append(float(torch.minimum(p, logits.softmax(-1)).sum(-1).mean()))
            same = logits.argmax(-1) == choice[:, k : k + logits.shape[1]]
            agreement.append(float(same.float().mean()))
        return Measured(overlap, agreement)

    def _guesses(self, batch: Corpus) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each depth k: draft logits, the target's p, and the text's token index, at all positions."""
        tokens = batch.tokens.to(self.teacher.device)  # [B, T]
        sources = None if batch.sources is None else batch.sources.to(self.teacher.device)
        hidden, seen = self.teacher.look(tokens, sources, self.head.config.layers)  # [B, T, size], [B, T, L, size]
        p = self.teacher.probabilities(hidden, self.vocabulary.tokens)  # [B, T, N]
        labels = self.vocabulary.labels(tokens)
        output = self.teacher.unembedding[self.vocabulary.tokens].t().to(self._dtype)  # [size, N]
        length = tokens.shape[1] - self.depth - 1  # positions with all of their guesses inside the text
        embedded = nn.functional.embedding(tokens, self.teacher.embedding).to(self._dtype)
        if self.head.config.kind == "blockwise":
            unroll, seen = self._fan, hidden[:, :, None]  # what a session shows as ``hidden``
        else:
            unroll = self._chain
        return [
            ((state @ output).float(), p[:, k : k + length], labels[:, k + 1 : k + 1 + length])
            for k, state in enumerate(unroll(seen[:, :length].to(self._dtype), embedded), 1)
        ]

    def _fan(self, seen: Tensor, embedded: Tensor) -> list[Tensor]:
        """Blockwise: the states behind all guesses at once."""
        states = self.head.fan(seen[:, :, -1], embedded[:, 1 : seen.shape[1] + 1])
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
        logits, p, label, counts = self._guesses(batch)
        return (objective(logits, p, label) * counts).sum() / counts.sum().clamp(min=1)

    @torch.no_grad()
    def measure(self, batch: Corpus) -> Measured:
        logits, p, _, counts = self._guesses(batch)
        shared = torch.minimum(p, logits.softmax(-1)).sum(-1)
        tokens = batch.tokens.to(self.teacher.device)
        sources = None if batch.sources is None else batch.sources.to(self.teacher.device)
        choice = self.vocabulary.labels(self.teacher.likeliest(self.teacher.hidden(tokens, sources)))
        same = logits.argmax(-1).eq(choice[:, :-1]).float()
        scale = counts.sum().clamp(min=1)
        return Measured([float((shared * counts).sum() / scale)], [float((same * counts).sum() / scale)])

    def _guesses(self, batch: Corpus) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tokens = batch.tokens.to(self.teacher.device)
        sources = None if batch.sources is None else batch.sources.to(self.teacher.device)
        hidden = self.teacher.hidden(tokens, sources)
        p = self.teacher.probabilities(hidden, self.vocabulary.tokens)[:, :-1]
        own = self.vocabulary.index[tokens[:, :-1]]
        counts = torch.ones_like(own, dtype=torch.float32)
        if sources is None:
            output = self.model(input_ids=own, use_cache=False)
        else:
            pad: int = self.teacher.model.model.config.pad_token_id
            counts = tokens[:, 1:].ne(pad).float()
            output = self.model(
                input_ids=sources, attention_mask=sources.ne(pad).long(), decoder_input_ids=own, use_cache=False
            )
        logits = output.logits[..., : len(self.vocabulary)].float()
        return logits, p, self.vocabulary.labels(tokens[:, 1:]), counts
