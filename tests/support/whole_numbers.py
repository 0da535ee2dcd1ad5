"""A backend that computes in whole numbers: its sums are exact on every CPU, so it is batch-invariant by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import CPU, ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.engine_protocol import Engine, Result, Wanted
from outrider.models.kv_buffers import Buffers
from outrider.models.session import no_source

SIZE, VOCAB = 4, 23
BAD = VOCAB - 1
"""A token whose embedding is not a number."""


class WholeNumbers:
    """Each token attends to every token before it, with weights that repeat every seven positions."""

    trims_prefill = True
    prefill_tokens = 40
    dtype = torch.float32  # whose sums of so few small numbers are exact; states of layers are written late

    def __init__(self) -> None:
        self.facts = ModelFacts(
            VOCAB, dtype=self.dtype, engine="whole numbers", hidden_size=SIZE, layers=1,
            batch_invariant=True, capacity_invariant=True,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randint(-9, 10, (VOCAB, SIZE), generator=generator).to(self.dtype)
        self.rows = self.table.clone()
        self.rows[BAD] = torch.nan
        self.runs: list[tuple[int, int]] = []  # rows and tokens of each run

    def allocate(self, rows: int, shape: Shape) -> Buffers:
        return Buffers.allocate([(1, SIZE, 1)], rows, shape.capacity, self.dtype, CPU)

    def run(self, tokens: Tensor, positions: Tensor, cache: Buffers, wanted: Wanted) -> Result:
        self.runs.append((tokens.shape[0], tokens.shape[1]))
        keys, x = cache.buffers()[0][0], self.rows[tokens]
        keys[torch.arange(len(tokens))[:, None], 0, positions] = x
        distance = positions[..., None] - cache.slots  # [B, w, C]
        hidden = torch.where(distance >= 0, 1 + distance % 7, 0).to(self.dtype) @ keys[:, 0]
        states = torch.stack([x if layer == 0 else hidden for layer in wanted.states], 2) if wanted.states else None
        part = hidden if wanted.tokens is None else hidden[:, wanted.tokens.start : wanted.tokens.stop]
        return Result(part @ self.table.T if wanted.logits else None, part, states)

    def encode(self, sources: Mapping[int, Source], cache: Buffers) -> None:
        raise no_source()


class WholeNumberModel(CheckpointModel):
    """A language model on that backend, or on a changed one."""

    def __init__(self, engine: WholeNumbers | None = None) -> None:
        self.backend = engine or WholeNumbers()
        self.engine: Engine = self.backend
        self.facts, self.config = self.engine.facts, None

    @property
    def generation_config(self) -> Any:
        return None

    @property
    def embedding(self) -> EmbeddingTable:
        return self.backend.table

    @property
    def unembedding(self) -> EmbeddingTable:
        return self.backend.table
