"""Heads in training, run several guesses deep on the target's own features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.drafters.head.layers import Head, Memory
from outrider.drafters.published.eagle3_layers import Eagle3Head
from outrider.drafters.published.layers import StackMemory
from outrider.training.data import Corpus
from outrider.training.objectives import Objective
from outrider.training.students import Guesses, Measured, TokenPositions, Vocabulary
from outrider.training.teacher import TargetOutput, Teacher


@dataclass
class DeepStudent(ABC):
    """A head of any kind, run ``depth`` guesses deep over the text's own tokens.

    ``decay`` weighs deeper guesses less: they only count when the ones before were accepted.
    """

    teacher: Teacher
    vocabulary: Vocabulary
    depth: int = 5
    decay: float = 0.7

    @property
    @abstractmethod
    def module(self) -> nn.Module: ...

    @property
    @abstractmethod
    def layers(self) -> Sequence[int]:
        """Of the target, whose states the head reads."""

    @abstractmethod
    def embedded(self, tokens: Tensor) -> Tensor:
        """What the head reads of tokens [B, T] -> [B, T, size]."""

    @abstractmethod
    def states(self, told: TargetOutput, embedded: Tensor) -> Sequence[Tensor]:
        """Behind guesses 1, 2, ... of a draft that begins at each place: [B, T, size] each.

        ``embedded`` [B, T + depth, size] are the tokens of the text.
        """

    @abstractmethod
    def logits(self, state: Tensor) -> Tensor:
        """The output layer: states [n, size] -> [n, N]."""

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
        told = self.teacher.read(tokens, batch.sources, self.layers)
        assert told.hidden is not None and told.states is not None
        p = told.probabilities(self.vocabulary.tokens, positions.before)  # [n, N]
        labels = self.vocabulary.labels(positions.before(tokens, 0).clamp(min=0))
        choice = self.vocabulary.labels(told.likeliest(positions.before))
        embedded = self.embedded(tokens.clamp(min=0)).to(self.dtype)
        embedded = nn.functional.pad(embedded, (0, 0, 0, self.depth))  # behind the end, where nothing counts
        guesses = []
        for k, state in enumerate(self.states(told, embedded), 1):  # of a draft that began k + 1 tokens before
            counts = (positions.columns > k).float()
            logits = self.logits(positions.before(state, k + 1))
            guesses.append(Guesses(logits, p, labels, choice, counts, positions))
        return guesses

    @property
    def dtype(self) -> torch.dtype:
        return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32


class HeadStudent(DeepStudent):
    """A head of Outrider's own kinds: feature, block or blockwise. Its output layer is the target's."""

    def __init__(self, teacher: Teacher, head: Head, vocabulary: Vocabulary, depth: int = 5, decay: float = 0.7):
        super().__init__(teacher, vocabulary, depth, decay)
        self.head = head

    @property
    def module(self) -> nn.Module:
        return self.head

    @property
    def layers(self) -> Sequence[int]:
        return self.head.config.layers

    def embedded(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.teacher.model.embedding)

    def states(self, told: TargetOutput, embedded: Tensor) -> Sequence[Tensor]:
        assert told.hidden is not None and told.states is not None
        self._output = self.teacher.model.unembedding[self.vocabulary.tokens].t().to(self.dtype)  # [size, N]
        if self.head.config.blockwise:
            return self._fan(told.hidden.to(self.dtype), embedded)
        if self.head.config.parallel:
            return self._parallel(told.states.to(self.dtype), embedded)
        return self._chain(told.states.to(self.dtype), embedded)

    def logits(self, state: Tensor) -> Tensor:
        return state @ self._output

    def _fan(self, hidden: Tensor, embedded: Tensor) -> list[Tensor]:
        """Blockwise: the states behind all guesses at once."""
        states = self.head.fan(hidden, embedded[:, 1 : hidden.shape[1] + 1])
        return list(states.unbind(2))[: self.depth]

    def _parallel(self, seen: Tensor, embedded: Tensor) -> list[Tensor]:
        """Block: every guess from the same state of the target, then corrected by the text's own tokens before it."""
        length = seen.shape[1]
        place = _places(seen)
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
        length, place = seen.shape[1], _places(seen)
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
        return Memory(*self.head.attention.remember(x, place), _visible(place, self.head.config.window))


class Eagle3Student(DeepStudent):
    """An EAGLE-3 head of the speculators architecture, of one layer or several, with an output layer of its own.

    Only ``fc``, the layers and the norms learn: the output layer has the target's rows, as the speculators package
    trains such heads, too.
    """

    def __init__(self, teacher: Teacher, head: Eagle3Head, vocabulary: Vocabulary, depth: int = 5, decay: float = 0.7):
        super().__init__(teacher, vocabulary, depth, decay)
        self.head = head

    @property
    def module(self) -> nn.Module:
        return self.head

    @property
    def layers(self) -> Sequence[int]:
        return self.head.config.layers or ()

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.head.embedded(self.teacher.model.embedding, tokens)

    def states(self, told: TargetOutput, embedded: Tensor) -> Sequence[Tensor]:
        """As in drafting: see ``HeadStudent._chain``. A layer above another has the keys of what that one gives."""
        assert told.states is not None
        seen, stack = told.states.to(self.dtype), self.head.attention
        length, place = seen.shape[1], _places(seen)
        x = read = self.head.read(self.head.seen(seen), embedded[:, 1 : length + 1])
        parts: list[Memory] = []
        for layer in stack.layers:
            x = stack.layers[len(parts) - 1](x, place, parts[-1]) if parts else x
            parts.append(Memory(*layer.remember(x, place), _visible(place, layer.window)))
        memory, states = StackMemory(parts), list[Tensor]()
        for k in range(1, self.depth + 1):
            if k > 1:
                read = self.head.read(states[-1], embedded[:, k : k + length])
                stack.note(read, place + k - 1, memory)
            states.append(self.head.think(read, place + k - 1, memory))
        return states

    def logits(self, state: Tensor) -> Tensor:
        return self.head.logits(state)


def _places(seen: Tensor) -> Tensor:
    """[1, T]: the places of states [B, T, ...]."""
    return torch.arange(seen.shape[1], device=seen.device)[None]


def _visible(place: Tensor, window: int) -> Tensor:
    """[1, 1, 1, T, T]: place i of ``place`` [1, T] sees all up to i that are in the window."""
    back = place[0, :, None] - place[0]
    return ((back >= 0) & (back < window))[None, None, None]
