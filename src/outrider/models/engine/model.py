"""A Llama-like model run on a CPU by an engine of its own, behind the same sessions as any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from outrider.core.protocols import Shape
from outrider.models import width_costs
from outrider.models.batch_invariance import bits_do_not_depend_on_width
from outrider.models.engine.prepared import Prepared
from outrider.models.engine.rotary import frequencies
from outrider.models.engine.sizes import Sizes
from outrider.models.kv_buffers import Buffers
from outrider.models.transformers.model import HuggingFaceModel, HuggingFaceSession
from outrider.runtime import cpu


@dataclass(frozen=True)
class Run:
    """What a run of the layers reads, for B rows of W tokens; N = B * W."""

    x: Tensor  # [N, size]: embedded tokens
    start: Tensor  # [B]: where keys and values of each row go
    cos: Tensor  # [N, depth / 2]
    sin: Tensor
    masks: Mapping[str, Tensor] | None  # [B, 1, heads that share keys * W, C] each, where the engine reads them


Found = tuple[Tensor, dict[int, Tensor], Tensor | None]
"""What the layers gave [N, size], what went into those to keep [N, size], and logits [N, vocabulary], if wanted."""


class Engine(Protocol):
    """What runs the layers and the output matrix."""

    name: str
    kernels: str  # what else its bits depend on
    threads: int
    reads_masks: bool
    embedding: Any  # [V, size]: indexed by tokens they give float32 rows
    unembedding: Any

    def run(self, cache: Buffers, given: Run, keep: Sequence[int], logits: bool) -> Found:
        """Write keys and values; the layers to ``keep`` the inputs of are counted from 1 on."""


@dataclass(frozen=True)
class Outline:
    """What a model that transformers does not run is still asked for: its settings.

    transformers' own classes are not used: importing them takes longer than everything else here.
    """

    config: Any
    generation_config: Any
    device = torch.device("cpu")
    dtype = torch.float32

    def eval(self) -> Outline:
        return self

    def modules(self) -> Iterator[Any]:
        return iter(())

    def get_output_embeddings(self) -> None:
        return None

    def forward(self) -> None:
        raise NotImplementedError("this model is run by its engine")


class EngineModel(HuggingFaceModel):
    """Where a row's bits were found not to depend on how many rows run beside it, it is batch-invariant.

    Then runs are as narrow as they can be, and plain and speculative decoding still agree to the bit.
    """

    def __init__(self, outline: Outline, prepared: Prepared, engine: Callable[[Prepared, Any, int], Engine]) -> None:
        self._sizes = Sizes.of(outline.config)
        super().__init__(outline)
        self.prepared = prepared
        self.engine = engine(prepared, outline.config, self.vocab_size)
        self._frequencies, self._scale = frequencies(self.config)
        self.facts = replace(
            self.facts,
            engine=f"{self.engine.name}, {prepared.weights} weights",
            compute_dtype=torch.float16 if prepared.weights == "float16" else torch.float32,
            weight_format=prepared.weights,
            weights_read=self._sizes.weights + self._sizes.hidden * self.vocab_size,
        )
        conditions = f"{self.engine.name} {self.engine.kernels}, {self.engine.threads} threads"
        conditions += f", CPU {cpu.facts().identity}"
        if prepared.known("any_width", conditions, lambda: bits_do_not_depend_on_width(self)):
            self.facts = replace(self.facts, batch_invariant=True)
            costs = prepared.known("width_costs", conditions, lambda: width_costs.measured(self), width_costs.NOMINAL)
            self.facts = replace(self.facts, width_costs={int(width): cost for width, cost in costs.items()})

    def _probe(self) -> tuple[list[Any], list[Any]]:
        sizes = self._sizes
        self.facts = replace(self.facts, hidden_size=sizes.hidden)
        return [(sizes.shared, sizes.depth, sizes.depth)] * sizes.layers, []

    @property
    def embedding(self) -> Tensor:
        return cast(Tensor, self.engine.embedding)

    @property
    def sample(self) -> Tensor | None:
        tied = self.engine.embedding is self.engine.unembedding
        return self.prepared.tensor("sample") if tied and "sample" in self.prepared.record["places"] else None

    @property
    def unembedding(self) -> Tensor:
        return cast(Tensor, self.engine.unembedding)

    @property
    def groups(self) -> int:
        return self._sizes.groups

    def start(self, rows: int, shape: Shape) -> EngineSession:
        return EngineSession(self, rows, shape)

    def turns(self, capacity: int) -> tuple[Tensor, Tensor]:
        """cos and sin [capacity, depth / 2] of all positions, as transformers computes them."""
        positions, limit = torch.arange(capacity), self.max_length
        seen = positions if limit is None else positions.clamp(max=limit - 1)
        angles = seen[:, None].float() * self._frequencies
        return angles.cos() * self._scale, angles.sin() * self._scale


@dataclass(frozen=True)
class _States:
    hidden_states: dict[int, Tensor]


class EngineSession(HuggingFaceSession):
    """Rows whose keys and values are torch's, written and read by the engine."""

    model: EngineModel

    def __init__(self, model: EngineModel, rows: int, shape: Shape) -> None:
        super().__init__(model, rows, replace(shape, fixed=shape.fixed and not model.facts.batch_invariant))
        self._turns = model.turns(shape.capacity + shape.chunk)
        self._last = {-1, model.facts.layers or 0}
        self._inner: list[int] = []  # layers whose inputs are kept: their states, but for the first and the last

    def _allocate(self, shapes: list[Any], capacity: int) -> Buffers:
        return Buffers.allocate(shapes, self.context.rows, capacity, self.model.dtype, self.model.device)

    @torch.no_grad()
    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden, logits = self._layers(self.cache, tokens, positions, None)
        assert logits is not None
        return logits, hidden

    @torch.no_grad()
    def _prefill(self, row: int, tokens: Tensor, positions: Tensor, last: int) -> Tensor | None:
        if not self.shape.fixed:
            tokens, positions = tokens[:, : last + 1], positions[:, : last + 1]
        return self._layers(self.cache.row(row), tokens, positions, row)[0][0, last]

    def _layers(
        self, cache: Buffers, tokens: Tensor, positions: Tensor, row: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run tokens [B, W] of all rows, or of one -> hidden [B, W, size]; of all rows also logits [B, W, V].

        States are kept where a drafter asked for them.
        """
        width = tokens.shape[1]
        if width * self.model.groups == 1 and self.model.engine.reads_masks:
            # A single row of attention weights meets other kernels than several: a second one, of no consequence.
            tokens, positions = tokens.expand(-1, 2), torch.cat([positions, positions + 1], 1)
        x = self.model.embedding[tokens.flatten().clamp(max=self.model.vocab_size - 1)]
        cos, sin = (table.index_select(0, positions.flatten()) for table in self._turns)
        masks = dict(self._masks(positions)) if self.model.engine.reads_masks else None
        run = Run(x, positions[:, 0].contiguous(), cos, sin, masks)
        hidden, states, logits = self.model.engine.run(cache, run, self._inner, row is None)
        shape = (*tokens.shape, -1)
        shaped = hidden.view(shape)[:, :width]
        if self.states is not None:
            states |= dict.fromkeys(self._last, hidden) | {0: x}
            given = {layer: states[layer].view(shape)[:, :width] for layer in self._kept}
            rows = torch.arange(len(tokens)) if row is None else torch.tensor([row])
            self._keep(rows, positions[:, :width], _States(given))
        return shaped, None if logits is None else logits.view(shape)[:, :width]

    def keep_states(self, layers: Sequence[int]) -> None:
        super().keep_states(layers)
        self._inner = [layer for layer in layers if layer not in self._last | {0}]

    def _masks(self, positions: Tensor) -> Iterable[tuple[str, Tensor]]:
        """By name [B, 1, G * W, C]: heads that share keys are rows of one attention."""
        masks = self._mask(positions)
        named = {f"mask_{kind}": mask for kind, mask in masks.items()} if isinstance(masks, dict) else {"mask": masks}
        for name, mask in named.items():
            yield name, mask[:, :, None].expand(-1, -1, self.model.groups, -1, -1).flatten(2, 3)
