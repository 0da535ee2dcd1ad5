"""What the engines for Llama-like models on a CPU share: embedding, rotary positions, masks and states of layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import CPU, ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.core.token_tree import TokenTree
from outrider.models import masks
from outrider.models.engine.prepared import Prepared
from outrider.models.engine.rotary import frequencies, kinds_of_layers
from outrider.models.engine.sizes import Scales, Sizes
from outrider.models.engine_protocol import Result, Wanted
from outrider.models.kv_buffers import Buffers
from outrider.models.session import no_source
from outrider.models.settings import setting
from outrider.models.transformers.families import sliding_windows


@dataclass(frozen=True)
class Run:
    """What a run of the layers reads, for B rows of W tokens; N = B * W."""

    x: Tensor  # [N, size]: embedded tokens
    start: Tensor  # [B]: the position of each row's first token
    slots: Tensor  # [B]: the row of the KV cache that is its own; for engines that read masks always 0, 1, 2 ...
    cos: Tensor  # [N, depth / 2]
    sin: Tensor
    masks: Mapping[str, Tensor] | None  # [B, 1, heads that share keys * W, C] each, where the engine reads them
    turns: tuple[Tensor, Tensor]  # cos and sin [K, N, rotary / 2] of all kinds of rotary positions; the first is above
    tree: TokenTree | None = None  # what the tokens behind the first of the only row are; None: they follow it


Array = np.ndarray[Any, Any]
Found = tuple[Tensor, dict[int, Array], Tensor | None]
"""What the layers gave [N, size], what went into those to keep [N, size], and logits [N, vocabulary], if wanted."""


class LlamaEngine(ABC):
    """A model's weights as an engine reads them. A subclass runs the layers and the output matrix."""

    trims_prefill = True
    prefill_tokens = 128
    name: str
    kernels: str  # what else its bits depend on
    reads_masks: bool
    runs_trees = False
    embedding: EmbeddingTable  # of float32 rows
    unembedding: EmbeddingTable

    def __init__(self, prepared: Prepared, config: Any) -> None:
        self.prepared, self.threads = prepared, torch.get_num_threads()
        self.sizes, self.vocabulary = Sizes.of(config), int(config.vocab_size)
        self.max_length: int | None = setting(config, "max_position_embeddings")
        self.windows = sliding_windows(config)
        self.scales = Scales.of(config)
        kinds = kinds_of_layers(config)
        self.kinds = [list(dict.fromkeys(kinds)).index(kind) for kind in kinds]  # of rotary positions, by layer
        self._frequencies = [frequencies(config, kind) for kind in dict.fromkeys(kinds)]
        self._turns, self._growing = self._turned(0), Lock()
        self._last = {-1, self.sizes.layers}  # numbers of the last layer, whose states are the hidden states

    @abstractmethod
    def run_layers(self, cache: Buffers, given: Run, keep: Sequence[int], logits: bool) -> Found:
        """Write keys and values; the layers to ``keep`` the inputs of are counted from 1 on."""

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
        every, width = tokens.shape
        some = None if self.reads_masks else wanted.rows  # masks are of all rows of the cache
        slots = torch.arange(every) if some is None else some
        if some is not None:
            tokens, positions = tokens[some], positions[some]
        if width * self.sizes.groups == 1 and self.reads_masks:
            # One row of attention weights would run another kernel than several rows: add a second one and drop it.
            tokens, positions = tokens.expand(-1, 2), torch.cat([positions, positions + 1], 1)
        x = self.embedding[tokens.flatten().clamp(max=self.vocabulary - 1)]
        if self.scales.embedding != 1:
            x = x * self.scales.embedding
        cos, sin = (table.index_select(1, positions.flatten()) for table in self._turns)
        starts, seen = positions[:, 0].contiguous(), self._masks(positions, cache)
        inner = [layer for layer in wanted.states if layer != 0 and layer not in self._last]
        run = Run(x, starts, slots, cos[0], sin[0], seen, (cos, sin), wanted.tree)
        hidden, states, logits = self.run_layers(cache, run, inner, wanted.logits)

        def shaped(flat: Tensor) -> Tensor:
            found = flat.view((*tokens.shape, *flat.shape[1:]))[:, :width]
            return found if some is None else found.new_zeros((every, *found.shape[1:])).index_copy_(0, slots, found)

        kept = None
        if wanted.states:
            states |= dict.fromkeys(self._last, hidden.numpy()) | {0: x.numpy()}
            kept = shaped(torch.from_numpy(np.stack([states[layer] for layer in wanted.states], 1)))
        part = slice(None) if wanted.tokens is None else slice(wanted.tokens.start, wanted.tokens.stop)
        return Result(None if logits is None else shaped(logits)[:, part], shaped(hidden)[:, part], kept)

    def _masks(self, positions: Tensor, cache: Buffers) -> dict[str, Tensor] | None:
        """By name [B, 1, G * W, C]: heads that share keys are rows of one attention."""
        if not self.reads_masks:
            return None
        made = masks.causal(positions, cache.slots, self.windows, torch.float32)
        named = {f"mask_{kind}": mask for kind, mask in made.items()} if isinstance(made, dict) else {"mask": made}
        groups = self.sizes.groups
        return {name: mask[:, :, None].expand(-1, -1, groups, -1, -1).flatten(2, 3) for name, mask in named.items()}

    def _turned(self, count: int) -> tuple[Tensor, Tensor]:
        """cos and sin [K, count, rotary / 2] of the first positions, as transformers computes them."""
        positions, limit = torch.arange(count), self.max_length
        seen = positions if limit is None else positions.clamp(max=limit - 1)
        angles = [(seen[:, None].float() * radians, scale) for radians, scale in self._frequencies]
        cos, sin = zip(*((each.cos() * scale, each.sin() * scale) for each, scale in angles), strict=True)
        return torch.stack(cos), torch.stack(sin)
