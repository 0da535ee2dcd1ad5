"""Runs of a model compiled for this CPU by numba, on the memory of torch's tensors and of the file of weights."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numba
import numpy as np
import torch

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import CPU
from outrider.core.protocols import Shape
from outrider.core.token_tree import TreePlaces
from outrider.errors import require
from outrider.kernels.numba import (
    amx_products,
    attention_room,
    float16_products,
    kv_panels,
    llama,
    llama_records,
    packed_products,
    race,
)
from outrider.kernels.numba.code_cache import DIGEST, compiling
from outrider.kernels.numba.products import FLOAT32, Half
from outrider.kernels.numba.thread_team import ThreadTeam, zeros
from outrider.kernels.numba.tiles import PANEL
from outrider.models.engine.llama_engine import LayersRun, LlamaEngine, Run
from outrider.models.engine.panel_buffers import PanelBuffers
from outrider.models.engine.panel_rows import PackedRows, PanelRows
from outrider.models.engine.prepared import Prepared
from outrider.models.engine.sizes import Sizes
from outrider.models.engine.weight_files import FLOATS, WEIGHTS
from outrider.models.kv_buffers import Buffers
from outrider.models.llama_layer import LLAMA, PRODUCTS, LayerNorms, layer_name
from outrider.models.transformers.families import layer_design
from outrider.runtime import cpu

Addresses = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int, int]
"""Addresses of every layer's keys, of its values, and the positions and rows that both have room for."""

KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Formats of the KV cache."""


def _norm_rows(norms: LayerNorms, layers: int) -> np.ndarray[Any, Any]:
    """[L, 4]: in which row of all norms those of a layer are, by where they stand; -1: there is none."""
    of_layer = [norms.names.index(name) if name is not None else None for name in norms]
    each = len(norms.names)
    return np.array([[-1 if place is None else each * n + place for place in of_layer] for n in range(layers)])


def _aligned(*shape: int) -> np.ndarray[Any, Any]:
    """Room for float32 numbers. torch begins them at a line of memory, numpy need not."""
    found: np.ndarray[Any, Any] = torch.empty(shape, dtype=torch.float32, device=CPU).numpy()
    return found


def _paths(tree: TreePlaces | None, root: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Of the root and every node: places of the tokens on its path [W, levels], and its depth; none without a tree."""
    if tree is None:
        return np.zeros((0, 0), np.int64), np.zeros(0, np.int64)
    return root + tree.paths.numpy(), tree.depths.numpy()


def kv_cache_default(weights: str) -> str:
    """What keys and values are stored in beside such weights, on this CPU: in as many bits, at a small cost."""
    known = cpu.facts()
    if weights == "float32":
        return "float32"
    if known.has_amx:  # which multiplies bfloat16 only
        return "bfloat16"
    if known.computes_in_half:  # products of bfloat16 weights are in float32 there, and so are those of keys
        return "float32" if weights == "bfloat16" else "float16"
    return "float16" if known.converts_half else "float32"


class NumbaEngine(LlamaEngine):
    """Runs a model by code that numba compiles, on memory-mapped weights. Threads may share it."""

    name = f"numba {numba.__version__}"
    kernels = DIGEST
    runs_trees = True

    def __init__(
        self, prepared: Prepared, config: Any, kv_cache_dtype: str = "auto", max_length: int | None = None
    ) -> None:
        super().__init__(prepared, config, max_length)
        packed = prepared.weights not in FLOATS  # rounded to less than float16 already
        by_amx = amx_products.AVAILABLE and prepared.weights != "float32"  # which multiplies bfloat16 only
        default = kv_cache_default(prepared.weights)
        if kv_cache_dtype == "auto":
            kv_cache_dtype = default
        require(
            kv_cache_dtype != "float16" or kv_panels.HAS_FLOAT16,
            "kv_cache_dtype 'float16' cannot be used: this CPU does not convert float16; choose bfloat16 or float32",
        )
        self.kv_cache_dtype, self._stored = kv_cache_dtype, np.empty(0, kv_panels.STORED[kv_cache_dtype])
        self._lines = kv_panels.key_lines(kv_cache_dtype, self.sizes.depth)
        self._team = ThreadTeam(self.threads)
        self._known: WeakKeyDictionary[Buffers, Addresses] = WeakKeyDictionary()
        self._places = prepared.record["places"]
        with (prepared.folder / WEIGHTS).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file = np.frombuffer(self._map, np.uint8)
        self._half: Half = prepared.weights == "float16"
        self._layers = llama.layers
        if packed:
            self._half, self._layers = packed_products.address(), llama.packed_layers
        elif prepared.weights == "float32":
            self._half, self._layers = FLOAT32, llama.float32_layers
        elif len(self._places["output"][1]) == 5:  # panels as only AMX reads them
            self._half, self._layers = amx_products.SHAPES, llama.amx_layers
            self.name += " with AMX"
        elif self._half:
            assert float16_products.AVAILABLE, "backends.numba_computes_in_half and float16_products.py disagree"
            self.name += " in float16"
        self.kernels += f", {kv_cache_dtype} KV cache"
        if packed and by_amx and kv_cache_dtype == "bfloat16":
            self.name += " with attention by AMX"
        if kv_cache_dtype != default:
            self.name += f" with keys and values in {kv_cache_dtype}"
        self.model = self._model(self.sizes, config)
        self.embedding = self.unembedding = self._rows("output", self.model.hidden)
        if self._places["embedding"] != self._places["output"]:
            self.embedding = self._rows("embedding", self.model.hidden)
        self._none_kept = np.full(self.model.layers, -1)
        self._norms_after = bool((self.model.norm_rows[:, 1::2] >= 0).any())
        self._compile(self.sizes)

    def _compile(self, sizes: Sizes) -> None:
        """Run one token on buffers of its own: what is compiled is kept on disk, where the next process finds it."""
        cache = self._room(1, 1)
        turns = torch.zeros((len(set(self.kinds)), 1, sizes.rotary // 2))
        first = torch.tensor([0])
        given = Run(torch.zeros((1, sizes.hidden)), first, first, (turns, turns))
        with compiling(self._layers.py_func.__name__, "models", seconds=20):
            self.run_layers(cache, given, (), True)
        race.make_ready()

    def allocate(self, rows: int, shape: Shape) -> Buffers:
        self.grow(shape)
        return self._room(rows, shape.capacity)

    def _room(self, rows: int, capacity: int) -> Buffers:
        """Keys and values in the layouts of ``kv_panels.py``."""
        padded, sizes = -(-self.sizes.depth // PANEL) * PANEL, self.sizes
        shapes = [(sizes.shared, self._lines, padded)] * sizes.layers
        whole = -(-capacity // PanelBuffers.BLOCK) * PanelBuffers.BLOCK
        found = PanelBuffers.allocate(shapes, rows, whole, KV_DTYPES[self.kv_cache_dtype], CPU)
        return PanelBuffers(found.buffers(), capacity, kv_panels.paired(self.kv_cache_dtype))

    def _address(self, name: str) -> int:
        """Where a tensor lies, or 0 if there is none."""
        return self._file.ctypes.data + self._places[name][0] if name in self._places else 0

    def _rows(self, name: str, hidden: int) -> EmbeddingTable:
        place, shape = self._places[name]
        if self._layers is llama.packed_layers:
            return PackedRows(self._file, place, self.vocabulary, hidden)
        narrow = self.prepared.weights == "float16" and self._places[name] == self._places["output"]
        unit = int(self._powers(0)[-1][1]) if narrow else None
        return PanelRows(self._file, place, shape, self.vocabulary, hidden, unit)

    def _model(self, sizes: Sizes, config: Any) -> llama_records.LlamaWeights:
        names = [[f"{layer_name(layer)}.{product}" for product in PRODUCTS] for layer in range(sizes.layers)]
        windows, scales, design = self.windows, self.scales, layer_design(config) or LLAMA
        by_layer = (
            [windows[kind] for kind in config.layer_types] if isinstance(windows, dict) else [windows] * sizes.layers
        )
        return llama_records.LlamaWeights(
            sizes.layers, sizes.hidden, sizes.heads, sizes.shared, sizes.depth,
            padded=-(-sizes.depth // PANEL) * PANEL, inner=sizes.inner, epsilon=float(sizes.epsilon),
            scale=scales.attention,
            places=np.array([[self._address(name) for name in row] for row in names]),
            biases=np.array([[self._address(f"{name}.bias") for name in row] for row in names]),
            norms=self._vectors("norms"), norm_rows=_norm_rows(design.norms, sizes.layers),
            query_norms=self._vectors("query_norms"), key_norms=self._vectors("key_norms"),
            by_width=design.head_norms == "width", kinds=np.array(self.kinds), residual=scales.residual,
            attention_cap=scales.attention_cap, logits_scale=scales.logits, logits_cap=scales.logits_cap,
            gelu=design.activation != "silu",
            windows=np.array([2**31 if window is None else window for window in by_layer]),
            output=self._address("output"), half=self._half,
            powers=self._powers(4 * sizes.layers)[: 4 * sizes.layers].reshape(sizes.layers, 4, 2),
            last_powers=self._powers(0)[-1],
        )  # fmt: skip

    def _vectors(self, name: str) -> np.ndarray[Any, Any]:
        """Vectors of float32 [n, size]; none where the model has no such."""
        place, shape = self._places.get(name, (0, [0, 1]))
        found: np.ndarray[Any, Any] = self._file[place : place + 4 * math.prod(shape)].view(np.float32)
        return found.reshape(shape)

    def _powers(self, products: int) -> np.ndarray[Any, Any]:
        """What the inputs of all products are scaled by, the output matrix last; zeros where they are not."""
        if "powers" not in self._places:
            return np.zeros((products + 1, 2), np.int64)
        place, shape = self._places["powers"]
        return self._file[place:].view(np.int64)[: shape[0] * shape[1]].reshape(shape)

    def run_layers(self, cache: Buffers, given: Run, keep: Sequence[int], logits: bool) -> LayersRun:
        model, tokens = self.model, given.x.shape[0]
        kept = self._kept(keep)
        keys, values, room, slots = self._buffers(cache)
        rows = len(given.start)
        first, end = int(given.start.min()), int(given.start.max()) + tokens // rows
        lowest, highest = int(given.slots.min()), int(given.slots.max())
        inside = lowest >= 0 and highest < slots and len(given.slots) == rows
        if first < 0 or end > cache.capacity or not inside:  # compiled code does not check where it writes
            raise IndexError(
                f"rows {lowest} to {highest} with positions from {first} up to {end} do not fit into a KV cache of "
                f"{slots} rows and {cache.capacity} tokens"
            )
        cut = attention_room.cut(rows, tokens // rows, model.shared, self.sizes.groups, end, self.threads)
        blocks = rows * model.shared * cut.blocks if cut.by_tile else 0
        paths, depths = _paths(given.tree, first)
        found, states = torch.empty_like(given.x), torch.empty((tokens, len(keep), model.hidden))
        output = torch.empty((tokens if logits else 0, self.vocabulary))
        batch = llama_records.LlamaRows(
            x=given.x.clone(memory_format=torch.contiguous_format).numpy(), found=found.numpy(), logits=output.numpy(),
            starts=given.start.numpy(), slots=given.slots.numpy(), paths=paths, depths=depths,
            cos=given.turns[0].numpy(), sin=given.turns[1].numpy(), capacity=room,
            stored=self._stored, lines=self._lines, keys=keys, values=values,
            kept=kept, states=states.numpy(),
            queries=_aligned(tokens, model.heads + (model.shared if model.by_width else 0), model.depth),
            cut=cut,
            parts=_aligned(blocks, cut.tiles, cut.queries, model.padded + PANEL),
            finished=np.zeros((model.layers, blocks), np.int64),
            mixed=_aligned(tokens, model.heads * model.depth), gated=_aligned(tokens, model.inner),
            added=np.zeros((tokens if self._norms_after else 0, model.hidden), np.float32),
            counters=zeros(llama_records.PIECES * model.layers + 2), threads=self.threads,
        )  # fmt: skip
        self._team.run(self._layers, model, batch, holding=(cache, self._file))
        for place, layer in enumerate(keep):
            if layer in (-1, model.layers):  # the sum of all layers is what x ends as
                states.numpy()[:, place] = found.numpy() if layer == -1 else batch.x
            elif kept[layer] != place:  # asked for twice
                states.numpy()[:, place] = states.numpy()[:, kept[layer]]
        return LayersRun(found, states if keep else None, output if logits else None)

    def _kept(self, layers: Sequence[int]) -> np.ndarray[Any, Any]:
        """By layer, which of the states its input is, or -1."""
        kept = self._none_kept
        if layers:
            kept = kept.copy()
            for place, layer in enumerate(layers):
                if 0 <= layer < len(kept):
                    kept[layer] = place
        return kept

    def _buffers(self, cache: Buffers) -> Addresses:
        """Addresses of keys and values, layer by layer; buffers stay where they are from run to run."""
        known = self._known.get(cache)
        if known is None:
            buffers = cache.buffers()
            assert all(buffer.is_contiguous() for pair in buffers for buffer in pair)
            keys, values = (np.array([buffer.data_ptr() for buffer in kind]) for kind in zip(*buffers, strict=True))
            first = buffers[0][0]
            known = self._known[cache] = keys, values, int(first.shape[2]), len(first)
        return known
