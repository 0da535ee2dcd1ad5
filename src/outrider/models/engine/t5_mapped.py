"""The weights of a T5-like model where compiled code reads them: in the file that was prepared, mapped into memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.kernels.numba.amx_products import SHAPES
from outrider.kernels.numba.products import FLOAT32, Half
from outrider.kernels.numba.t5_records import GELU, RELU, SILU, T5Stack
from outrider.kernels.numba.tiles import PANEL
from outrider.models.engine.panel_rows import PanelRows
from outrider.models.engine.prepared import Prepared
from outrider.models.engine.t5_sizes import T5Sizes
from outrider.models.engine.weight_files import WEIGHTS

Array = np.ndarray[Any, Any]

_KINDS = {"relu": RELU, "silu": SILU}
_PRODUCTS = ("qkv", "out", "cross_q", "cross_out", "inner", "outer")
"""In the order in which ``T5Stack`` has them."""


class T5Weights:
    """A file of weights (``t5_weights.py``). Addresses in it are good as long as this lives."""

    def __init__(self, prepared: Prepared, sizes: T5Sizes) -> None:
        self.sizes, self._places = sizes, prepared.record["places"]
        self.by_amx = len(self._places["output"][1]) == 5  # panels as only AMX reads them
        self.half: Half = prepared.weights == "float16"
        if self.by_amx:
            self.half = SHAPES
        elif prepared.weights == "float32":
            self.half = FLOAT32
        with (prepared.folder / WEIGHTS).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file = np.frombuffer(self._map, np.uint8)
        names = sizes.names()
        scaled = self.view("powers", np.int64) if "powers" in self._places else np.zeros((len(names), 2), np.int64)
        self._powers: dict[str, Array] = dict(zip(names, scaled, strict=True))
        self.embedding = self.unembedding = self._rows("output")
        if self._places["embedding"] != self._places["output"]:
            self.embedding = self._rows("embedding")

    def view(self, name: str, kind: Any) -> Array:
        place, shape = self._places[name]
        found: Array = self._file[place:].view(kind)[: int(np.prod(shape))].reshape(shape)
        return found

    def _rows(self, name: str) -> PanelRows:
        narrow = "powers" in self._places and self._places[name] == self._places["output"]
        unit = int(self._powers["output"][1]) if narrow else None
        place, shape = self._places[name]
        return PanelRows(self._file, place, shape, self.sizes.vocabulary, self.sizes.hidden, unit)

    def _names(self, stack: str, products: Sequence[str]) -> list[list[str]]:
        return [[f"{stack}.{layer}.{name}" for name in products] for layer in range(self.sizes.layers(stack))]

    def addresses(self, stack: str, products: Sequence[str]) -> Array:
        """[layers, products]: where matrices begin; 0 for those that an encoder does not have."""
        start, places = self._file.ctypes.data, self._places
        names = self._names(stack, products)
        return np.array([[start + places[name][0] if name in places else 0 for name in row] for row in names])

    def powers(self, stack: str, products: Sequence[str]) -> Array:
        """[layers, products, 2]: what inputs are scaled by (``float16_products.py``); zeros where they are not."""
        none = np.zeros(2, np.int64)
        return np.array([[self._powers.get(name, none) for name in row] for row in self._names(stack, products)])

    def stack(self, stack: str) -> T5Stack:
        """The encoder or the decoder."""
        sizes, norms = self.sizes, self.view(f"{stack}.norms", np.float32)
        return T5Stack(
            sizes.layers(stack), sizes.hidden, sizes.heads, sizes.depth,
            padded=-(-sizes.depth // PANEL) * PANEL, inner=sizes.inner, gated=sizes.gated,
            activation=_KINDS.get(sizes.activation, GELU), crosses=stack == "decoder", epsilon=sizes.epsilon,
            embedding=self.embedding.table, places=self.addresses(stack, _PRODUCTS),
            norms=norms[:-1].reshape(-1, 3, sizes.hidden).copy(), last_norm=norms[-1].copy(),
            output=self._file.ctypes.data + self._places["output"][0], half=self.half,
            powers=self.powers(stack, _PRODUCTS), last_powers=self._powers["output"].copy(),
        )  # fmt: skip
