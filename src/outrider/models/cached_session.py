"""The session of every engine: rows with a KV cache of fixed capacity, states of layers on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.errors import BadOption, require
from outrider.models.engine_protocol import Engine, Wanted
from outrider.models.session import BufferedSession


class Runnable(Protocol):
    """What a session needs of a model."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def embedding(self) -> EmbeddingTable: ...

    @property
    def unembedding(self) -> EmbeddingTable: ...


class CachedSession(BufferedSession):
    """Rows of a model with a KV cache. Runs have constant width; on batch-invariant models only what they need."""

    def __init__(self, model: Runnable, rows: int, shape: Shape) -> None:
        facts = model.facts
        super().__init__(
            rows, replace(shape, fixed=shape.fixed and not facts.batch_invariant), facts.vocab_size, facts.device
        )
        self.model, self.engine = model, model.engine
        self.cache = self.engine.allocate(rows, shape)
        if facts.hidden_size is not None:
            self.embedding, self.unembedding = model.embedding, model.unembedding
            self.hidden = torch.zeros((rows, facts.hidden_size), dtype=facts.dtype, device=facts.device)
        self._kept: tuple[int, ...] = ()  # layers whose output ``states`` holds

    def keep_states(self, layers: Sequence[int]) -> None:
        facts = self.model.facts
        known = facts.layers or 0
        wrong = [layer for layer in layers if not -1 <= layer <= known]
        require(not wrong, f"layers {wrong} do not exist: the model has {known}")
        if self.states is not None and self._kept != tuple(layers):
            raise BadOption(f"states of layers {self._kept} are kept for another draft, not those of {tuple(layers)}")
        if facts.hidden_size is None:
            raise BadOption("this model shows no states of its layers; use a draft that reads none")
        self._kept = tuple(layers)
        shape = (self.context.rows, self.shape.capacity, len(self._kept), facts.hidden_size)
        self.states = torch.zeros(shape, dtype=facts.dtype, device=facts.device)

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        # As far as a row before may have written, guesses and prefill chunks included: the rest was never touched.
        used = int(self.context.lengths[row]) + 2 * self.shape.width + self.shape.chunk
        for buffer in (b for pair in self.cache.buffers() for b in pair):
            buffer[row, :, :used].zero_()  # what is left here is masked, but a NaN passes through any mask
        if self.states is not None:
            self.states[row, :used] = 0  # a prompt of one token has nothing behind it, least of all another request's
        super().admit(row, prompt, source)

    def _encode(self, row: int, source: Source) -> None:
        self.engine.encode(source, self.cache, row)

    def _copy_memory(self, rows: Tensor) -> None:
        self.cache = self.cache.select(rows)

    def _move_memory(self, rows: Tensor) -> None:
        if rows.device.type != "cpu" or len(rows) != self.context.rows:  # on a GPU, finding which rows move would sync
            self._copy_memory(rows)
        else:
            self.cache.reorder(rows, int(self.context.lengths.max()) + self.guessed)

    @torch.no_grad()
    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        found = self.engine.run(tokens, positions, self.cache, self._wanted(tokens.shape[1]))
        self._keep(torch.arange(len(tokens), device=tokens.device), positions, found.states)
        assert found.logits is not None
        return found.logits, found.hidden

    @torch.no_grad()
    def _prefill(self, row: int, tokens: Tensor, positions: Tensor, last: int) -> Tensor | None:
        if self.engine.trims_prefill and not self.shape.fixed:
            tokens, positions = tokens[:, : last + 1], positions[:, : last + 1]
        wanted = Wanted(range(last, last + 1), logits=False, states=self._kept)
        found = self.engine.run(tokens, positions, self.cache.row(row), wanted)
        self._keep(torch.tensor([row], device=tokens.device), positions, found.states)
        return None if found.hidden is None else found.hidden[0, 0]

    def _wanted(self, width: int) -> Wanted:
        """What a run of all rows is for."""
        return Wanted(states=self._kept)

    def _keep(self, rows: Tensor, positions: Tensor, given: Tensor | None) -> None:
        """Write what the layers gave where it belongs; like keys and values, stale places are written over."""
        if self.states is not None and given is not None:
            self.states[rows[:, None], positions] = given
