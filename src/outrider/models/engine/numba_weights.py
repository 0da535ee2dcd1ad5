"""A Llama-like model's weights as numba's kernels read them: panels of sixteen columns.

In bfloat16 or float32 for ``kernels/numba/tiles.py``, where a column's weights are as they were saved, in bfloat16 for
``kernels/numba/amx_products.py``, or in float16 for ``kernels/numba/float16_products.py``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.core.model_facts import dtype_name
from outrider.errors import ModelCorrupt, ModelError, require
from outrider.kernels.numba import amx_products
from outrider.kernels.numba.float16_products import CHAIN
from outrider.kernels.numba.tiles import PANEL
from outrider.models.engine.sizes import PartNames, Sizes
from outrider.models.engine.weight_files import FLOATS, REMEDY, WEIGHTS, Tensors, WeightFile, check_shape
from outrider.models.llama_layer import EMBEDDING, HEAD_NORMS, LAST_NORM, LLAMA, OUTPUT, PRODUCTS, layer_name
from outrider.models.settings import saved_dtype
from outrider.models.transformers.families import layer_design

FORMAT = 6
"""Raised whenever the layout changes: what was prepared before is then prepared again."""

SAMPLE = 256
"""Rows of the embedding by which a model is known: see ``models/transformers/fingerprint.py``."""

_MOST = 4
"""Weights in float16 are below 2 ** 4: those above 2 ** -20 of the largest have the bits they were saved with."""

_ROOM = 60000.0
"""What a sum in float16 stays below; the range ends at 65,504, and rounding goes up as well as down."""


class Products:
    """Matrices on their way from a checkpoint into a file, in bfloat16, float16 or float32."""

    def __init__(self, file: WeightFile, tensors: Tensors, weights: str, saved: str, amx: bool = False) -> None:
        """``weights``: what the file is to have; ``saved``: what the checkpoint has, as its config says; ``amx``:
        whether weights of bfloat16 are multiplied by that."""
        self.file, self.tensors, self.half = file, tensors, weights == "float16"
        self._bfloat16_panels = amx_panels if amx else panels
        self._exact_in: torch.dtype = FLOATS[saved if self.half else weights]
        self.powers: list[tuple[int, int]] = []  # of two: the largest input, and what weights were divided by

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor:
        """A matrix of the checkpoint, with the numbers it was saved with."""
        given = self.tensors.tensor(name)
        check_shape(name, tuple(given.shape), shape)
        kept = given.to(self._exact_in)
        require(
            given.dtype == kept.dtype or torch.equal(kept.to(given.dtype), given),
            f"{name} has weights that are no {dtype_name(kept.dtype)}, though config.json says so; load the model with "
            "engine='torch', or with weights='int8'",
            ModelError,
        )
        return kept

    def write(self, name: str, weight: Tensor) -> None:
        if not self.half:
            self.table(name, weight)
            return
        narrow, limit, unit = in_half(name, weight)
        self.powers.append((limit, unit))
        self.file.write(name, column_panels(narrow))

    def table(self, name: str, weight: Tensor) -> None:
        """Write a matrix that tokens are looked up in: nothing is scaled."""
        if weight.dtype == torch.float16:
            weight = weight.to(torch.float32)
        arrange = self._bfloat16_panels if weight.dtype == torch.bfloat16 else column_panels
        self.file.write(name, arrange(weight))


def write(folder: Path, source: Path, config: Any, weights: str) -> dict[str, tuple[int, list[int]]]:
    """Weights into a file -> where in it each of them is."""
    file = WeightFile(folder / WEIGHTS)
    try:
        tensors, sizes = Tensors(source, PartNames.of(config)), Sizes.of(config)
        products = Products(file, tensors, weights, saved_dtype(config), amx_products.AVAILABLE)
        for layer in range(sizes.layers):
            for name, parts in PRODUCTS.items():
                _write_product(products, layer_name(layer), name, parts, sizes)
        for kind, (norms, size) in norm_names(config, sizes).items():
            scales = [tensors.sized(name, (size,)) for name in norms]
            file.write(kind, torch.stack(scales).numpy() + norm_offset(config))
        tied = config.tie_word_embeddings or OUTPUT not in tensors
        output = EMBEDDING if tied else OUTPUT
        products.write("output", products.matrix(output, (config.vocab_size, sizes.hidden)))
        if products.half:
            file.write("powers", np.array(products.powers))
            # As they were saved, down to the smallest: heads know their target by them.
            file.write("sample", tensors.joined([output])[:SAMPLE].numpy())
        if not tied:
            products.table("embedding", products.matrix(EMBEDDING, (config.vocab_size, sizes.hidden)))
        tensors.require_all_used(except_for={OUTPUT} if tied else set())
    finally:
        file.close()
    return {"embedding": file.places["output"]} | file.places  # tied: tokens are looked up in the output layer


def norm_names(config: Any, sizes: Sizes) -> dict[str, tuple[list[str], int]]:
    """Weights of RMS norms, and how many each has, by the name of the array they are written to: those of all layers
    and the last; of queries and keys."""
    design, prefixes = layer_design(config) or LLAMA, [layer_name(layer) for layer in range(sizes.layers)]
    around = [f"{prefix}.{name}.weight" for prefix in prefixes for name in design.norms.names]
    found = {"norms": ([*around, f"{LAST_NORM}.weight"], sizes.hidden)}
    if design.head_norms is not None:
        counts = (1, 1) if design.head_norms == "head" else (sizes.heads, sizes.shared)
        for kind, name, heads in zip(("query_norms", "key_norms"), HEAD_NORMS, counts, strict=True):
            size = heads * sizes.depth
            found[kind] = ([f"{prefix}.{name}.weight" for prefix in prefixes], size)
    return found


def norm_offset(config: Any) -> np.float32:
    """What is added to the weights of norms: kept with them, so that compiled layers need not know of it."""
    return np.float32((layer_design(config) or LLAMA).norm_offset)


def _write_product(products: Products, prefix: str, name: str, parts: tuple[str, ...], sizes: Sizes) -> None:
    shapes, tensors = sizes.shapes(), products.tensors
    weights = [products.matrix(f"{prefix}.{part}.weight", shapes[part.rpartition(".")[2]]) for part in parts]
    biased = [part for part in parts if f"{prefix}.{part}.bias" in tensors]
    require(len(biased) in (0, len(parts)), f"only {biased} of {prefix} have biases; {REMEDY}", ModelError)
    biases = [tensors.sized(f"{prefix}.{part}.bias", shapes[part.rpartition(".")[2]][:1])[:, None] for part in biased]
    for kind, given in (("", weights), (".bias", biases)):
        if not given:
            continue
        if name == "qkv":  # heads one behind the other, each filled up to whole panels
            split = torch.cat(given).view(-1, sizes.depth, given[0].shape[1])
            whole = torch.nn.functional.pad(split, (0, 0, 0, -sizes.depth % PANEL)).flatten(0, 1)
        elif name == "gate_up":  # a panel of the one, the same panel of the other
            whole = torch.stack([part.view(-1, PANEL, part.shape[1]) for part in given], 1).flatten(0, 2)
        else:
            whole = given[0]
        if kind:
            products.file.write(f"{prefix}.{name}{kind}", whole[:, 0].contiguous().numpy())
        else:
            products.write(f"{prefix}.{name}", whole)


def panels(weight: Tensor) -> np.ndarray[Any, Any]:
    """A weight [out, in] -> [out / 16, in, 8, 2] bits: columns j and j + 8 of a panel are the halves of one word."""
    outputs, inputs = weight.shape
    bits = torch.nn.functional.pad(weight, (0, 0, 0, -outputs % PANEL)).view(torch.int16)
    found: np.ndarray[Any, Any] = bits.view(-1, 2, PANEL // 2, inputs).permute(0, 3, 2, 1).contiguous().numpy()
    return found


def amx_panels(weight: Tensor) -> np.ndarray[Any, Any]:
    """A weight [out, in] -> [out / 16, in / 32, 16, 16, 2] bits: inputs 2 i and 2 i + 1 of a column side by side."""
    chunk = amx_products.CHUNK
    whole = torch.nn.functional.pad(weight, (0, -weight.shape[1] % chunk, 0, -weight.shape[0] % PANEL))
    split = whole.view(torch.int16).view(-1, PANEL, whole.shape[1] // chunk, chunk // 2, 2)
    found: np.ndarray[Any, Any] = split.permute(0, 2, 3, 1, 4).contiguous().numpy()
    return found


def in_half(name: str, weight: Tensor) -> tuple[Tensor, int, int]:
    """A weight [out, in] -> itself over 2 ** unit in float16, inputs filled up; limit and unit.

    Inputs up to 2 ** limit cannot bring the sum of a chain to the end of the range, whatever they are.
    """
    whole = torch.nn.functional.pad(weight.to(torch.float32), (0, -weight.shape[1] % CHAIN))
    largest = float(whole.abs().max())
    require(math.isfinite(largest), f"{name} has weights that are no numbers; the checkpoint is damaged", ModelCorrupt)
    unit = math.frexp(largest)[1] - _MOST
    narrow = torch.ldexp(whole, torch.tensor(-unit)).to(torch.float16)
    most = float(narrow.to(torch.float32).abs().view(len(whole), -1, CHAIN).sum(2).max())
    return narrow, math.floor(math.log2(_ROOM / most)) if most else 0, unit


def column_panels(weight: Tensor) -> np.ndarray[Any, Any]:
    """A weight [out, in] in float16 or float32 -> [out / 16, in, 16]."""
    whole = torch.nn.functional.pad(weight, (0, 0, 0, -weight.shape[0] % PANEL))
    found: np.ndarray[Any, Any] = whole.view(-1, PANEL, whole.shape[1]).transpose(1, 2).contiguous().numpy()
    return found
