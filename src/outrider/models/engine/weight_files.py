"""Reads the tensors of a checkpoint and writes them into one file, which engines map into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from outrider.errors import ModelCorrupt, ModelError, require
from outrider.models.engine.sizes import TensorRows
from outrider.models.hub.safetensors_files import weight_files

WEIGHTS = "weights.bin"
PAGE = 4096

FLOATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""Formats of weights that are not packed."""


def check_shape(name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    require(found == shape, f"{name} is {found}, and the config says {shape}; the checkpoint is damaged", ModelCorrupt)


class Tensors:
    """The tensors of a directory's safetensors files, read one at a time.

    ``where``: the tensor and its rows that stand for a name, where a checkpoint has joined several in one.
    """

    def __init__(self, folder: Path, where: Callable[[str], TensorRows] = TensorRows) -> None:
        self._where = where
        files: list[Any] = [safe_open(str(file), framework="pt") for file in weight_files(folder)]
        self.home = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._where(name).name in self.home

    def tensor(self, name: str) -> Tensor:
        """As it was saved."""
        rows = self._where(name)
        require(rows.name in self.home, f"the checkpoint has no tensor {rows.name!r}; {REMEDY}", ModelError)
        self.used.add(rows.name)
        found: Tensor = self.home[rows.name].get_tensor(rows.name)
        return found if rows.count is None else found[rows.first : rows.first + rows.count]

    def sized(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """In float32, and of this shape: compiled code reads as many numbers as the config says."""
        found = self.tensor(name).to(torch.float32)
        check_shape(name, tuple(found.shape), shape)
        return found

    def joined(self, names: Sequence[str]) -> Tensor:
        """Tensors one below the other, in float32."""
        return torch.cat([self.tensor(name).to(torch.float32) for name in names])

    def require_all_used(self, except_for: set[str]) -> None:
        """A tensor that no graph reads would be a part of the model that is left out."""
        derived = {name for name in self.home if name.endswith("rotary_emb.inv_freq")}
        unused = sorted(self.home.keys() - self.used - derived - except_for)
        require(not unused, f"the checkpoint has tensors that are not known here: {unused[:3]}; {REMEDY}", ModelError)


REMEDY = "load the model with engine='torch'"


class WeightFile:
    """Tensors in one file, one after another, each from a page's beginning."""

    def __init__(self, path: Path) -> None:
        self.file: BinaryIO = path.open("wb")
        self.places: dict[str, tuple[int, list[int]]] = {}  # offset in bytes and shape

    def write(self, name: str, array: np.ndarray[Any, Any]) -> int:
        """Append an array -> where it begins."""
        return self.write_pieces(name, [array], list(array.shape))

    def write_pieces(self, name: str, pieces: Iterable[np.ndarray[Any, Any]], shape: list[int]) -> int:
        """Append what comes in pieces -> where it begins."""
        self.file.seek(-self.file.tell() % PAGE, 1)
        place = self.file.tell()
        for piece in pieces:
            self.file.write(np.ascontiguousarray(piece).data)
        self.places[name] = (place, shape)
        return place

    def close(self) -> None:
        self.file.close()
