"""A Llama-like model's weights of four to eight bits in one file, for ``kernels/numba/packed_products.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from outrider.errors import ModelError, require
from outrider.kernels.numba.packed_formats import (
    BFLOAT16,
    BLOCK,
    CODES,
    FORMATS,
    UNIT,
    QuantisedRows,
    panel_table,
    panels,
)
from outrider.kernels.numba.tiles import PANEL
from outrider.models.engine import error_aware, numba_weights, quantised
from outrider.models.engine import weight_files as safetensors
from outrider.models.engine.gguf_rows import rows_of
from outrider.models.engine.sizes import PartNames, Sizes, TensorRows
from outrider.models.engine.weight_files import REMEDY, WEIGHTS, WeightFile, check_shape
from outrider.models.hub import manifest
from outrider.models.hub.gguf_tensors import FULL, GgufTensors
from outrider.models.llama_layer import EMBEDDING, OUTPUT, PRODUCTS, layer_name

FORMAT = 2
"""Raised whenever the layout changes: what was prepared before is then prepared again."""

_PIECE = 64
"""Panels packed at a time: what is made on the way stays small."""

Array = np.ndarray[Any, Any]

NONE: Mapping[str, QuantisedRows] = {}


class PackedTensors(Protocol):
    """A checkpoint's tensors, whose matrices are packed on their way out."""

    def __contains__(self, name: str) -> bool: ...

    def code(self, name: str) -> int:
        """The format of a matrix: an index of ``FORMATS``, or BFLOAT16."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def panels(self, name: str, rows: Array) -> Array:
        """Rows of a matrix, sixteen a panel, zeros for number -1 -> bytes [panels, n]."""

    def full(self, name: str) -> Array:
        """A vector, in float32."""

    def norm_offset(self, config: Any) -> np.float32:
        """What is added to the weights of norms."""


class PackedGguf:
    """A GGUF file's matrices: packed ones with the bits they have there, others in bfloat16."""

    def __init__(self, path: Path, depth: int, where: Callable[[str], TensorRows] = TensorRows) -> None:
        """``where``: the tensor and its rows that stand for a name, where the file has joined several in one."""
        self._file, self._depth, self._where = GgufTensors(path), depth, where

    def __contains__(self, name: str) -> bool:
        return self._where(name).name in self._file

    def code(self, name: str) -> int:
        return CODES.get(self._file.format(self._where(name).name), BFLOAT16)

    def shape(self, name: str) -> tuple[int, ...]:
        some = self._where(name)
        whole, *rest = self._file.shape(some.name)
        return (whole if some.count is None else min(some.count, whole - some.first), *rest)

    def full(self, name: str) -> Array:
        some = self._where(name)
        found = self._file.vector(some.name, self._depth)
        return found if some.count is None else found[some.first : some.first + some.count]

    def norm_offset(self, config: Any) -> np.float32:
        return np.float32(0)  # files have it in the weights

    def panels(self, name: str, rows: Array) -> Array:
        some = self._where(name)
        kind = self._file.format(some.name)
        raw = self._file.rows(some.name, np.where(rows < 0, -1, rows + some.first), self._depth)
        if kind in CODES:
            return panels(rows_of(kind, raw))
        return bfloat16_panels(torch.from_numpy(_numbers(kind, raw)))


class Quantised:
    """A full checkpoint's matrices in groups of 32 inputs: eight bits, or four with the output matrix in eight."""

    def __init__(self, folder: Path, bits: int, where: PartNames, done: Mapping[str, QuantisedRows] = NONE) -> None:
        """``done``: matrices in four bits, by the names of their tensors; others are rounded to the nearest."""
        self._tensors, self._bits, self._where, self._done = safetensors.Tensors(folder, where), bits, where, done
        self._last: tuple[str, torch.Tensor] = ("", torch.empty(0))

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def _tensor(self, name: str) -> torch.Tensor:
        """The one that was read last is kept: a matrix is packed some panels at a time."""
        if self._last[0] != name:
            self._last = (name, self._tensors.tensor(name))
        return self._last[1]

    def code(self, name: str) -> int:
        return CODES["Q8_0" if self._bits == 8 or name in (EMBEDDING, OUTPUT) else "Q4_1"]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensor(name).shape)

    def full(self, name: str) -> Array:
        found: Array = self._tensor(name).to(torch.float32).numpy()
        return found

    def panels(self, name: str, rows: Array) -> Array:
        place = self._where(name)
        if (done := self._done.get(place.name)) is not None:
            return panels(some_rows(done, np.where(rows < 0, -1, rows + place.first)))
        weight, index = self._tensor(name), torch.from_numpy(rows)
        chosen = weight[index.clamp(min=0)].to(torch.float32).masked_fill((index < 0)[:, None], 0.0)
        quantise = quantised.in_eight_bits if self.code(name) == CODES["Q8_0"] else quantised.in_four_bits
        return panels(quantise(chosen))

    def norm_offset(self, config: Any) -> np.float32:
        return numba_weights.norm_offset(config)

    def require_all_used(self, except_for: set[str]) -> None:
        self._tensors.require_all_used(except_for)


def some_rows(matrix: QuantisedRows, rows: Array) -> QuantisedRows:
    """Rows of a matrix in four bits; zeros for number -1."""
    there = (rows >= 0)[:, None].astype(np.float16)
    assert matrix.minima is not None
    return QuantisedRows(matrix.form, matrix.whole[rows], matrix.scales[rows] * there, matrix.minima[rows] * there)


def _numbers(kind: str, raw: Array) -> Array:
    """Bytes of float32, float16 or bfloat16 as float32."""
    assert kind in FULL
    if kind == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(np.float32 if kind == "F32" else np.float16).astype(np.float32)


def bfloat16_panels(weight: torch.Tensor) -> Array:
    found = numba_weights.panels(weight.to(torch.bfloat16))
    return found.reshape(len(found), -1).view(np.uint8)


def write_gguf(folder: Path, source: Path, config: Any) -> dict[str, tuple[int, list[int]]]:
    """The weights of a converted model's GGUF file, as they are."""
    packed = manifest.packed(source)
    if packed is None:
        raise ModelError(f"{source} has no GGUF file whose weights are run as they are; {REMEDY}")
    return write(folder, PackedGguf(packed.require(), Sizes.of(config).depth, PartNames.of(config)), config)


def write_quantised(folder: Path, source: Path, config: Any, weights: str) -> dict[str, tuple[int, list[int]]]:
    """The weights of a full checkpoint, quantised to int8 by rounding, or to int4 by what changes outputs least."""
    done = error_aware.quantised_layers(source, config) if weights == "int4" else NONE
    tensors = Quantised(source, {"int8": 8, "int4": 4}[weights], PartNames.of(config), done)
    found = write(folder, tensors, config)
    tensors.require_all_used(except_for={OUTPUT} if config.tie_word_embeddings else set())
    return found


def write(folder: Path, tensors: PackedTensors, config: Any) -> dict[str, tuple[int, list[int]]]:
    """Weights into a file -> where in it each of them is."""
    file, sizes = WeightFile(folder / WEIGHTS), Sizes.of(config)
    spans: list[tuple[int, int]] = []  # inputs with one scale, for each product; the second number is not used
    try:
        for layer in range(sizes.layers):
            for product, parts in PRODUCTS.items():
                names = [f"{layer_name(layer)}.{part}" for part in parts]
                _check_shapes(tensors, names, sizes)
                spans.append(_write_matrix(file, tensors, f"{layer_name(layer)}.{product}", names, sizes))
                _write_bias(file, tensors, f"{layer_name(layer)}.{product}", names, sizes)
        for kind, (norms, size) in numba_weights.norm_names(config, sizes).items():
            scales = [_vector(tensors, name, size) for name in norms]
            file.write(kind, np.stack(scales) + tensors.norm_offset(config))
        tied = config.tie_word_embeddings or OUTPUT not in tensors
        for name, tensor in (("output", EMBEDDING if tied else OUTPUT), ("embedding", EMBEDDING))[: 1 if tied else 2]:
            check_shape(tensor, tensors.shape(tensor), (config.vocab_size, sizes.hidden))
            span = _write_matrix(file, tensors, name, [tensor.removesuffix(".weight")], sizes)
            spans += [span] if name == "output" else []
        file.write("powers", np.array(spans))
    finally:
        file.close()
    return {"embedding": file.places["output"]} | file.places


def _check_shapes(tensors: PackedTensors, names: Sequence[str], sizes: Sizes) -> None:
    for name in names:
        weight = f"{name}.weight"
        check_shape(weight, tensors.shape(weight), sizes.shapes()[name.rpartition(".")[2]])


def _vector(tensors: PackedTensors, name: str, size: int) -> Array:
    found = tensors.full(name)
    check_shape(name, found.shape, (size,))
    return found


def _write_matrix(
    file: WeightFile, tensors: PackedTensors, name: str, parts: Sequence[str], sizes: Sizes
) -> tuple[int, int]:
    """A table of panels, then the panels -> inputs with one scale, and 0."""
    weights = [f"{part}.weight" for part in parts]
    rows = [_rows(tensors.shape(weight)[0], sizes.depth if name.endswith(".qkv") else 0) for weight in weights]
    together = name.endswith(".gate_up")  # a panel of the one, the same panel of the other
    inputs, codes = tensors.shape(weights[0])[1], [tensors.code(weight) for weight in weights]
    by_panel = codes * len(rows[0]) if together else [c for c, r in zip(codes, rows, strict=True) for _ in r]
    table = panel_table(by_panel, inputs)

    def pieces() -> Iterator[Array]:
        yield table.view(np.uint8).ravel()
        yield np.zeros(table[0, 0] - table.nbytes, np.uint8)
        for group in [list(range(len(weights)))] if together else [[k] for k in range(len(weights))]:
            for first in range(0, len(rows[group[0]]), _PIECE):
                found = [tensors.panels(weights[k], rows[k][first : first + _PIECE].ravel()) for k in group]
                yield np.concatenate(found, -1).ravel()

    file.write_pieces(name, pieces(), [len(by_panel), inputs])
    blocks = any(code != BFLOAT16 and FORMATS[code].blocks for code in codes)
    return BLOCK if blocks else UNIT, 0


def _rows(outputs: int, depth: int) -> Array:
    """Rows of panels [P, 16]; with the depth of a head, each head filled up to whole panels."""
    each = depth or outputs
    heads = np.arange(outputs).reshape(-1, each)
    filled = np.pad(heads, ((0, 0), (0, -each % PANEL)), constant_values=-1)
    return filled.reshape(-1, PANEL)


def _write_bias(file: WeightFile, tensors: PackedTensors, name: str, parts: Sequence[str], sizes: Sizes) -> None:
    biased = [part for part in parts if f"{part}.bias" in tensors]
    require(len(biased) in (0, len(parts)), f"only {biased} have biases; {REMEDY}", ModelError)
    if not biased:
        return
    biases = [_vector(tensors, f"{part}.bias", tensors.shape(f"{part}.weight")[0]) for part in parts]
    if name.endswith(".qkv"):
        split = np.concatenate(biases).reshape(-1, sizes.depth)
        whole = np.pad(split, ((0, 0), (0, -sizes.depth % PANEL))).ravel()
    elif name.endswith(".gate_up"):
        whole = np.stack([bias.reshape(-1, PANEL) for bias in biases], 1).ravel()
    else:
        whole = biases[0]
    file.write(f"{name}.bias", np.ascontiguousarray(whole, np.float32))
