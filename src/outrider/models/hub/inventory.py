"""What the cache holds, model by model, what it occupies, and how to remove it."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelError, ModelNotFound
from outrider.models.hub import manifest
from outrider.models.hub.making import locked_name
from outrider.runtime.cache_dir import cache_dir

PREPARED = "prepared.json"
"""The record beside weights that an engine reads: see ``prepared.py``, which needs torch, and this does not."""

REMOVED_ENGINES = ("onnx", "onnxruntime")
"""Engines of earlier versions: what was prepared for them is no longer used."""


@dataclass(frozen=True)
class Part:
    """A directory of the cache."""

    kind: str  # converted, prepared, compiled, unfinished, or unused
    path: Path
    bytes: int  # that it occupies
    detail: str = ""


@dataclass(frozen=True)
class Entry:
    """A model, or what all models share, with every part of it."""

    name: str
    source: str | None
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def entries() -> list[Entry]:
    """Everything in the cache: converted models, directories that were prepared, and what is shared."""
    root, (prepared, unused) = cache_dir(), _prepared()
    found = []
    for model in manifest.installed():
        own = prepared.pop(model.path.resolve(), [])
        found.append(Entry(model.name, model.source, (Part("converted", model.path, occupied(model.path)), *own)))
    found += [Entry(str(source), str(source), tuple(parts)) for source, parts in sorted(prepared.items())]
    compiled = [Part("compiled", path, occupied(path)) for path in sorted(root.glob("compiled-*"))]
    stale = [Part("unfinished", path, occupied(path)) for path in sorted(root.glob(".*.partial-*"))]
    if compiled:
        found.append(Entry("compiled code", None, tuple(compiled)))
    if stale:
        found.append(Entry("unfinished", None, tuple(stale)))
    if unused:
        found.append(Entry("no longer used", None, tuple(unused)))
    return found


def find(name: str) -> Entry:
    """All of what a user means by a short name, the path of a .gguf file or of a model's directory, or a cache path."""
    path, found = Path(name).expanduser().resolve(), entries()
    meant = [
        entry for entry in found if entry.name in (name, str(path)) or path in {p.path.resolve() for p in entry.parts}
    ]
    if not meant:
        names = ", ".join(entry.name for entry in found) or "nothing"
        raise ModelNotFound(f"model {name!r} is not in {cache_dir()}; there is: {names}")
    # A .gguf file that has changed was converted once more, under the same name.
    return Entry(meant[0].name, meant[0].source, tuple(part for entry in meant for part in entry.parts))


def remove(entry: Entry, *, only_prepared: bool = False) -> list[Part]:
    """Remove an entry's directories -> those removed. Processes that have them open go on."""
    gone = [part for part in entry.parts if not only_prepared or part.kind == "prepared"]
    for part in gone:
        held = contextlib.nullcontext() if part.kind in ("compiled", "unfinished") else locked_name(part.path)
        try:
            with held:
                shutil.rmtree(part.path)
        except OSError as error:
            raise ModelError(f"{part.path} cannot be removed ({error.strerror}); remove it yourself") from error
    return gone


def _prepared() -> tuple[dict[Path, list[Part]], list[Part]]:
    """What engines read, by the directory it was made from; and what no engine reads any more."""
    found: dict[Path, list[Part]] = {}
    unused: list[Part] = []
    for folder in sorted(path.parent for path in cache_dir().glob(f"[!.]*/{PREPARED}")):
        try:
            record = json.loads((folder / PREPARED).read_text(encoding="utf-8"))
            source, weights = Path(record["source"]), str(record["weights"])
        except (OSError, ValueError, LookupError, TypeError):
            source, weights = folder, "damaged"
        engine, size = engine_of(folder), occupied(folder)
        if engine in REMOVED_ENGINES:
            unused.append(Part("unused", folder, size, f"{engine}, {weights}"))
        else:
            found.setdefault(source, []).append(Part("prepared", folder, size, f"{engine}, {weights}"))
    return found, unused


def engine_of(prepared: Path) -> str:
    """The engine that a directory was prepared for, by its name."""
    return prepared.name.rpartition("-")[0]


def occupied(folder: Path) -> int:
    """Bytes of all files in a directory."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            total += path.lstat().st_size if path.is_file() else 0
    return total
