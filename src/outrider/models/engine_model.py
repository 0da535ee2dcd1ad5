"""A Llama-like model run on a CPU by an engine of its own, behind the same sessions as any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from outrider.models import width_costs
from outrider.models.any_width import bits_do_not_depend_on_width
from outrider.models.buffers import Buffers
from outrider.models.engines import cpu_identity
from outrider.models.huggingface import HuggingFaceModel, HuggingFaceSession
from outrider.models.prepared import Prepared
from outrider.models.rotary import frequencies
from outrider.models.sizes import Sizes
from outrider.types import Shape


@dataclass(frozen=True)
class Run:
    """What a run of the layers reads, for B rows of W tokens; N = B * W."""

    x: Tensor  # [N, size]: embedded tokens
    start: Tensor  # [B]: where keys and values of each row go
    cos: Tensor  # [N, depth / 2]
    sin: Tensor
    masks: Mapping[str, Tensor] | None  # [B, 1, heads that share keys * W, C] each, where the engine reads them


class Engine(Protocol):
    """What runs the layers and the output matrix."""

    name: str
    kernels: str  # what else its bits depend on
    threads: int
    reads_masks: bool
    embedding: Any  # [V, size]: indexed by tokens they give float32 rows
    unembedding: Any

    def run(self, cache: Buffers, given: Run, keep: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Write keys and values -> hidden [N, size], and the inputs [N, size] of the layers to keep (from 1 on)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, size] -> [N, vocabulary]."""


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
    """Where a row's bits were found not to depend on how many rows run beside it, ``any_width`` is true.

    Then runs are as narrow as they can be, and plain and speculative decoding still agree to the bit.
    """

    def __init__(self, outline: Outline, prepared: Prepared, engine: Callable[[Prepared, Any, int], Engine]) -> None:
        self._sizes = Sizes.of(outline.config)
        super().__init__(outline)
        self.prepared = prepared
        self.engine = engine(prepared, outline.config, self.vocab_size)
        self._frequencies, self._scale = frequencies(self.config)
        self.weights_read = self._sizes.weights + self._sizes.hidden * self.vocab_size
        self.engine_name = f"{self.engine.name}, {prepared.weights} weights"
        conditions = f"{self.engine.name} {self.engine.kernels}, {self.engine.threads} threads, CPU {cpu_identity()}"
        self.any_width = bool(prepared.known("any_width", conditions, lambda: bits_do_not_depend_on_width(self)))
        if self.any_width:
            costs = prepared.known("width_costs", conditions, lambda: width_costs.measured(self), width_costs.NOMINAL)
            self.width_costs = {int(width): cost for width, cost in costs.items()}

    def _probe(self) -> tuple[list[Any], list[Any]]:
        sizes = self._sizes
        self.hidden_size = sizes.hidden
        return [(sizes.shared, sizes.depth, sizes.depth)] * sizes.layers, []

    @property
    def embedding(self) -> Tensor:
        return cast(Tensor, self.engine.embedding)

    @property
    def unembedding(self) -> Tensor:
        return cast(Tensor, self.engine.unembedding)

    @property
    def groups(self) -> int:
        return self._sizes.groups

    def start(self, rows: int, shape: Shape) -> EngineSession:
        return EngineSession(self, rows, shape)

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [N, depth / 2] of positions [B, W], as transformers computes them."""
        limit = self.positions_limit
        seen = positions if limit is None else positions.clamp(max=limit - 1)
        angles = seen.flatten()[:, None].float() * self._frequencies
        return angles.cos() * self._scale, angles.sin() * self._scale


@dataclass(frozen=True)
class _States:
    hidden_states: dict[int, Tensor]


class EngineSession(HuggingFaceSession):
    """Rows whose keys and values are torch's, written and read by the engine."""

    model: EngineModel

    def __init__(self, model: EngineModel, rows: int, shape: Shape) -> None:
        super().__init__(model, rows, replace(shape, fixed=shape.fixed and not model.any_width))

    def _allocate(self, shapes: list[Any], capacity: int) -> Buffers:
        return Buffers.allocate(shapes, self.context.rows, capacity, self.model.dtype, self.model.device)

    @torch.no_grad()
    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden = self._layers(self.cache, tokens, positions, torch.arange(len(tokens)))
        logits = self.model.engine.logits(hidden.flatten(0, 1))
        return logits.view(*tokens.shape, -1), hidden

    @torch.no_grad()
    def _prefill(self, row: int, tokens: Tensor, positions: Tensor, last: int) -> Tensor | None:
        if not self.shape.fixed:
            tokens, positions = tokens[:, : last + 1], positions[:, : last + 1]
        return self._layers(self.cache.row(row), tokens, positions, torch.tensor([row]))[0, last]

    def _layers(self, cache: Buffers, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Run tokens [B, W] -> hidden [B, W, size]; states are kept under ``rows`` where a drafter asked for them."""
        width = tokens.shape[1]
        if width * self.model.groups == 1 and self.model.engine.reads_masks:
            # A single row of attention weights meets other kernels than several: a second one, of no consequence.
            tokens, positions = tokens.expand(-1, 2), torch.cat([positions, positions + 1], 1)
        x = self.model.embedding[tokens.clamp(max=self.model.vocab_size - 1)]
        masks = dict(self._masks(positions)) if self.model.engine.reads_masks else None
        run = Run(x.flatten(0, 1), positions[:, 0].contiguous(), *self.model.turns(positions), masks)
        layers = self.model.config.num_hidden_layers
        last = {-1, layers}
        keep = [layer for layer in self._kept if layer not in last | {0}]
        hidden, states = self.model.engine.run(cache, run, keep)
        states |= dict.fromkeys(last, hidden) | {0: run.x}
        shaped = {layer: state.view_as(x)[:, :width] for layer, state in states.items()}
        self._keep(rows, positions[:, :width], _States(shaped))
        return shaped[-1]

    def _masks(self, positions: Tensor) -> Iterable[tuple[str, Tensor]]:
        """By name [B, 1, G * W, C]: heads that share keys are rows of one attention."""
        masks = self._mask(positions)
        named = {f"mask_{kind}": mask for kind, mask in masks.items()} if isinstance(masks, dict) else {"mask": masks}
        for name, mask in named.items():
            yield name, mask[:, :, None].expand(-1, -1, self.model.groups, -1, -1).flatten(2, 3)
