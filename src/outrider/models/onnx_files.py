"""Graphs and weights for onnxruntime, written once into the cache and read from there by every process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from outrider.errors import ModelCorrupt
from outrider.models import hub
from outrider.models.onnx_graph import WEIGHTS, Tensors
from outrider.models.onnx_llama import FORMAT, write

RECORD = "prepared.json"


@dataclass(frozen=True)
class Prepared:
    """A folder with a model's graphs and weights."""

    folder: Path
    record: dict[str, Any]

    @property
    def weights(self) -> str:
        return str(self.record["weights"])

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def tensor(self, name: str) -> Tensor:
        """A float32 tensor in the file of weights, mapped: only what is read of it takes memory."""
        offset, shape = self.record["places"][name]
        count = int(torch.Size(shape).numel())
        path = self.folder / WEIGHTS
        if path.stat().st_size < offset + 4 * count:
            raise ModelCorrupt(f"{path} is too short; remove {self.folder} and load the model again")
        whole = torch.from_file(str(path), shared=False, size=offset // 4 + count, dtype=torch.float32)
        return whole[offset // 4 :].view(shape)

    def known(self, what: str, conditions: str, find_out: Callable[[], bool]) -> bool:
        """A fact that takes a while to find out, and holds as long as the conditions do."""
        facts = self.record.setdefault(what, {})
        if conditions not in facts:
            facts[conditions] = find_out()
            with contextlib.suppress(OSError):  # a cache that cannot be written to: found out again next time
                _write_record(self.folder, self.record)
        return bool(facts[conditions])


def prepare(source: Path, config: Any, int8: bool) -> Prepared:
    """The graphs and weights of a model's directory, written first if they are not there or no longer fit it."""
    weights = "int8" if int8 else "float32"
    final = hub.cache_dir() / f"onnx-{_key(source, weights)}"
    if not final.is_dir():
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        needed = 2 * sum(file.stat().st_size for file in source.glob("*.safetensors"))
        with hub.making(str(source), final, needed, console) as stage:
            if not final.is_dir():  # another process may have been faster
                with console.status(f"Writing {weights} weights for onnxruntime (once)"):
                    _make(stage / "model", source, config, weights).rename(final)
    return Prepared(final, json.loads((final / RECORD).read_text(encoding="utf-8")))


def _make(folder: Path, source: Path, config: Any, weights: str) -> Path:
    folder.mkdir()
    places = write(folder, Tensors(source), config, weights == "int8")
    record = {"source": str(source.resolve()), "weights": weights, "places": places}
    _write_record(folder, record)
    for old in hub.cache_dir().glob(f"onnx-*/{RECORD}"):  # from the same directory, before it changed
        known = json.loads(old.read_text(encoding="utf-8"))
        if all(known.get(name) == record[name] for name in ("source", "weights")):
            shutil.rmtree(old.parent, ignore_errors=True)
    return folder


def _key(source: Path, weights: str) -> str:
    """By what the files are made from: another checkpoint, another setting or another graph is another key."""
    files = sorted(file for file in source.iterdir() if file.suffix in (".safetensors", ".json"))
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((FORMAT, weights, str(source.resolve()), facts)).encode()).hexdigest()[:32]


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    """Whole or not at all: another process may be reading it."""
    draft = folder / f".{RECORD}.{os.getpid()}"
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / RECORD)
