"""Files that an engine runs a model from: written once into the cache, and read from there by every process."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.models.engine.weight_files import PAGE, WEIGHTS
from outrider.models.engine_protocol import Engine
from outrider.models.hub import manifest
from outrider.models.hub.gguf import MB
from outrider.models.hub.inventory import PREPARED, engine_of
from outrider.models.hub.making import making, require_memory
from outrider.models.hub.safetensors_files import sizes, weight_files
from outrider.runtime.cache_dir import cache_dir
from outrider.runtime.files import locked, note, replace_whole, write_whole

RECORD = PREPARED

_DOING = {
    "any_width": "Checking batch invariance",
    "any_prefill": "Checking that prefilling prompts together changes no bits",
    "any_capacity": "Checking that the KV cache's capacity changes no bits",
    "width_costs": "Measuring what runs cost by their tokens",
    "sampled_guess_cost": "Measuring what a guess costs beside this target",
}
"""What a process does that finds out a fact of this name, for messages."""

Places = dict[str, tuple[int, list[int]]]
"""Offset in bytes and shape of a tensor in the file of weights, by name."""


@dataclass(frozen=True)
class Layout:
    """How an engine reads weights: what writes them so, and what they take."""

    engine: str
    weights: str  # their format: float32, bfloat16, ...
    version: int  # raised whenever the files change: what was written before is then written again
    write: Callable[[Path, Path, Any], Places]  # into a folder, from a checkpoint's directory and its config
    bytes_each: float = 0  # of a weight; 0: those of a GGUF file, as many as it has
    arrangement: str = ""  # what instructions weights lie in order for, where not all CPUs have them

    def bytes_needed(self, source: Path) -> int:
        """Of disk space, a little more than will be written: every tensor begins on a page of its own."""
        if not self.bytes_each:
            packed = manifest.packed(source)
            return int(1.05 * packed.require().stat().st_size) + 10 * MB if packed else 0
        numbers = sizes(source)
        return int(1.05 * self.bytes_each * sum(numbers)) + PAGE * len(numbers) + MB


@dataclass(frozen=True)
class Prepared:
    """A folder with a model's weights as an engine reads them, and where each is in their file."""

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
        whole = torch.from_file(str(path), shared=False, size=offset // 4 + count, dtype=torch.float32)
        return whole[offset // 4 :].view(shape)

    def known(self, what: str, conditions: str, find_out: Callable[[], Any], otherwise: Any = None) -> Any:
        """A fact that takes a while to find out, and holds as long as the conditions do, as JSON gives it back.

        Found out once, whoever asks at the same time. Where it cannot be kept, it is ``otherwise``, if that is given:
        what is found out anew in every process may differ from one to the next.
        """
        found, doing = self.record.get(what, {}).get(conditions), _DOING.get(what, f"Measuring {what}")
        if found is not None:
            return found
        try:
            with locked(self.folder / ".lock", f"Waiting for another process: {doing.lower()}"):
                record = _read_record(self.folder)
                facts = record.setdefault(what, {})  # another process may have found it out by now
                if conditions not in facts:
                    note(f"{doing} on this CPU (once)")
                    facts[conditions] = found = json.loads(json.dumps(find_out()))
                    write_record(self.folder, record)
                self.record.update(record)
                return facts[conditions]
        except (OSError, ValueError):  # a cache that cannot be written to, or a record damaged meanwhile
            if otherwise is not None:
                return otherwise
            return find_out() if found is None else found


class PreparedEngine(Engine, Protocol):
    """An engine that runs a model from such files."""

    name: str
    kernels: str  # what else its bits depend on
    threads: int
    embedding: EmbeddingTable  # of float32 rows
    unembedding: EmbeddingTable

    @property
    def prepared(self) -> Prepared: ...


def prepare(source: Path, config: Any, layout: Layout) -> Prepared:
    """The files of an engine for a model's directory, written first if they are not there or no longer fit it."""
    final = cache_dir() / f"{layout.engine}-{_key(source, layout)}"
    found = _whole(final)
    if found is None:
        with making(str(source), final, 0) as (stage, space):
            found = _whole(final)  # another process may have been faster
            if found is None:
                _remove_stale(source, layout, final)
                needed = layout.bytes_needed(source)
                space.require(needed)
                require_memory(source.name, needed)
                with Console(stderr=True).status(f"Writing {layout.weights} weights for {layout.engine} (once)"):
                    made = make_files(stage / "model", source, config, layout)
                if final.exists():
                    note(f"{final} is damaged and is written again")
                    final.rename(stage / "damaged")
                replace_whole(made, final)
                found = Prepared(final, _read_record(final))
    return found


def _whole(folder: Path) -> Prepared | None:
    """What was prepared, if it is as it was written: an engine reads by address, and beyond the end of a file there is
    no error message."""
    try:
        record, size = _read_record(folder), (folder / WEIGHTS).stat().st_size
    except (OSError, ValueError):
        return None
    return Prepared(folder, record) if record.get("size") == size else None


def _read_record(folder: Path) -> dict[str, Any]:
    """ValueError where it is damaged."""
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    if not isinstance(record, dict) or not {"source", "weights", "size", "places"} <= record.keys():
        raise ValueError(f"{folder / RECORD} is incomplete")
    return record


def make_files(folder: Path, source: Path, config: Any, layout: Layout) -> Path:
    folder.mkdir()
    places = layout.write(folder, source, config)
    size = (folder / WEIGHTS).stat().st_size
    record = {"source": str(source.resolve()), "weights": layout.weights, "size": size, "places": places}
    if layout.arrangement:
        record["arrangement"] = layout.arrangement
    write_record(folder, record)
    return folder


def _remove_stale(source: Path, layout: Layout, final: Path) -> None:
    """Remove what was prepared from this checkpoint as it was before, or from one that is gone."""
    for folder in (path.parent for path in cache_dir().glob(f"[!.]*/{RECORD}")):
        try:
            known = _read_record(folder)
        except (OSError, ValueError):  # damaged: whoever loads its model writes it again
            continue
        same = known["source"] == str(source.resolve()) and known["weights"] == layout.weights
        same = same and known.get("arrangement", "") == layout.arrangement
        replaced = same and engine_of(folder) == layout.engine
        if folder != final and (replaced or not Path(known["source"]).exists()):
            shutil.rmtree(folder, ignore_errors=True)


def _key(source: Path, layout: Layout) -> str:
    """By what the files are made from: another checkpoint, another setting or another layout is another key."""
    settings, packed = sorted(source.glob("*.json")), None if layout.bytes_each else manifest.packed(source)
    if packed is None:
        files, weights = sorted([*weight_files(source), *settings]), ""
    else:  # a file may have been moved, and weights unpacked beside: neither changes what is prepared
        files, weights = [file for file in settings if file.name != manifest.MANIFEST], packed.sha256
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files] + ([weights] * bool(weights))
    told = (layout.version, layout.weights, layout.arrangement, str(source.resolve()), facts)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def write_record(folder: Path, record: dict[str, Any]) -> None:
    write_whole(folder / RECORD, json.dumps(record, indent=2) + "\n")
