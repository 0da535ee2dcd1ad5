"""What engines for Llama-like models on a CPU share: embedding, rotary positions and states of layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import CPU, ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.core.token_tree import TreePlaces
from outrider.models.engine.prepared import Prepared
from outrider.models.engine.rotary import frequencies, kinds_of_layers
from outrider.models.engine.sizes import Scales, Sizes
from outrider.models.engine_protocol import Result, Wanted
from outrider.models.kv_buffers import Buffers
from outrider.models.positions import Positions
from outrider.models.session import no_source
from outrider.models.transformers.families import sliding_windows


@dataclass(frozen=True)
class Run:
    """What a run of the layers reads, for B rows of W tokens; N = B * W."""

    x: Tensor  # [N, size]: embedded tokens
    start: Tensor  # [B]: the position of each row's first token
    slots: Tensor  # [B]: the row of the KV cache that is its own
    turns: tuple[Tensor, Tensor]  # cos and sin [K, N, rotary / 2] of all kinds of rotary positions
    tree: TreePlaces | None = None  # what the tokens behind the first of the only row are; None: they follow it


@dataclass(frozen=True)
class LayersRun:
    """What a run of the layers gave."""

    hidden: Tensor  # [N, size]
    states: Tensor | None  # [N, S, size]: what went into the layers to keep
    logits: Tensor | None  # [N, vocabulary], if wanted


class LlamaEngine(ABC):
    """A model's weights as an engine reads them. A subclass runs the layers and the output matrix."""

    trims_prefill = True
    prefill_tokens = 128
    name: str
    kernels: str  # what else its bits depend on
    runs_trees = False
    embedding: EmbeddingTable  # of float32 rows
    unembedding: EmbeddingTable

    def __init__(self, prepared: Prepared, config: Any, max_length: int | None = None) -> None:
        """``max_length``: see ``positions.py``."""
        self.prepared, self.threads = prepared, torch.get_num_threads()
        self.sizes, self.vocabulary = Sizes.of(config), int(config.vocab_size)
        positions = Positions.of(config, max_length)
        self.max_length, self._longest = positions.count, positions.most
        self.windows = sliding_windows(config)
        self.scales = Scales.of(config)
        kinds = kinds_of_layers(config)
        self.kinds = [list(dict.fromkeys(kinds)).index(kind) for kind in kinds]  # of rotary positions, by layer
        self._frequencies = [frequencies(config, kind, positions.long) for kind in dict.fromkeys(kinds)]
        self._turns, self._growing = self._turned(0), Lock()

    @abstractmethod
    def run_layers(self, cache: Buffers, given: Run, keep: Sequence[int], logits: bool) -> LayersRun:
        """Write keys and values. ``keep``: layers whose outputs are wanted, numbered as in ``Wanted.states``: what goes
        into the layer behind layer k, or into the last norm, and for -1 the hidden states."""

    @property
    def facts(self) -> ModelFacts:
        weights, sizes = self.prepared.weights, self.sizes
        return ModelFacts(
            self.vocabulary,
            max_length=self.max_length,
            engine=f"{self.name}, {weights} weights",
            compute_dtype=torch.float16 if weights == "float16" else torch.float32,
            weight_format=weights,
            hidden_size=sizes.hidden,
            layers=sizes.layers,
            runs_trees=self.runs_trees,
            weights_read=sizes.weights + sizes.hidden * self.vocabulary,
            longest=self._longest,
        )

    def allocate(self, rows: int, shape: Shape) -> Buffers:
        self.grow(shape)
        sizes = self.sizes
        layers = [(sizes.shared, sizes.depth, sizes.depth)] * sizes.layers
        return Buffers.allocate(layers, rows, shape.capacity, torch.float32, CPU)

    def grow(self, shape: Shape) -> None:
        """Rotations of all positions of a session."""
        room = shape.capacity + shape.chunk  # the last chunk of a prompt may reach beyond the capacity
        with self._growing:
            if self._turns[0].shape[1] < room:
                self._turns = self._turned(room)

    def encode(self, sources: Mapping[int, Source], cache: Buffers) -> None:
        raise no_source()

    def run(self, tokens: Tensor, positions: Tensor, cache: Buffers, wanted: Wanted) -> Result:
        every, some = len(tokens), wanted.rows
        slots = torch.arange(every) if some is None else some
        if some is not None:
            tokens, positions = tokens[some], positions[some]
        x = self.embedding[tokens.flatten().clamp(max=self.vocabulary - 1)]
        if self.scales.embedding != 1:
            x = x * self.scales.embedding
        cos, sin = (table.index_select(1, positions.flatten()) for table in self._turns)
        run = Run(x, positions[:, 0].contiguous(), slots, (cos, sin), wanted.tree)
        found = self.run_layers(cache, run, wanted.states, wanted.logits)

        def shaped(flat: Tensor) -> Tensor:
            part = flat.view((*tokens.shape, *flat.shape[1:]))
            return part if some is None else part.new_zeros((every, *part.shape[1:])).index_copy_(0, slots, part)

        part = slice(None) if wanted.tokens is None else slice(wanted.tokens.start, wanted.tokens.stop)
        return Result(
            None if found.logits is None else shaped(found.logits)[:, part],
            shaped(found.hidden)[:, part],
            None if found.states is None else shaped(found.states),
        )

    def _turned(self, count: int) -> tuple[Tensor, Tensor]:
        """cos and sin [K, count, rotary / 2] of the first positions, as transformers computes them."""
        positions, limit = torch.arange(count), self.max_length
        seen = positions if limit is None else positions.clamp(max=limit - 1)
        angles = [(seen[:, None].float() * radians, scale) for radians, scale in self._frequencies]
        cos, sin = zip(*((each.cos() * scale, each.sin() * scale) for each, scale in angles), strict=True)
        return torch.stack(cos), torch.stack(sin)
