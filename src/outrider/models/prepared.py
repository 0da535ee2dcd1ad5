"""What an engine runs a model from, written once into the cache and read from there by every process."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from rich.console import Console
from torch import Tensor

from outrider.errors import ModelCorrupt
from outrider.models import hub
from outrider.models.weight_files import WEIGHTS
from outrider.places import cache_dir

RECORD = "prepared.json"

Places = dict[str, tuple[int, list[int]]]
"""Offset in bytes and shape of a tensor in the file of weights, by name."""


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
        found = self.record.get(what, {}).get(conditions)
        if found is not None:
            return found
        try:
            with FileLock(self.folder / ".lock"):
                record = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
                facts = record.setdefault(what, {})  # another process may have found it out by now
                if conditions not in facts:
                    _console().print(f"Finding out {what.replace('_', ' ')} for this CPU (once)")
                    facts[conditions] = found = json.loads(json.dumps(find_out()))
                    _write_record(self.folder, record)
                self.record.update(record)
                return facts[conditions]
        except OSError:  # a cache that cannot be written to
            if otherwise is not None:
                return otherwise
            return find_out() if found is None else found


def _console() -> Console:
    return Console(stderr=True, soft_wrap=True, highlight=False)


def prepare(source: Path, config: Any, engine: str, int8: bool = False, half: bool = False) -> Prepared:
    """The files of an engine for a model's directory, written first if they are not there or no longer fit it."""
    form = _form(engine, int8, half)
    final = cache_dir() / f"{engine}-{_key(source, form)}"
    if not final.is_dir():
        console = _console()
        # Twice for float32, and with large vocabularies the embeddings once more.
        needed = 3 * sum(file.stat().st_size for file in source.glob("*.safetensors"))
        with hub.making(str(source), final, needed, console) as stage:
            if not final.is_dir():  # another process may have been faster
                with console.status(f"Writing {form.weights} weights for {engine} (once)"):
                    _make(stage / "model", source, config, form).rename(final)
    prepared = Prepared(final, json.loads((final / RECORD).read_text(encoding="utf-8")))
    _require_whole(prepared)
    return prepared


def _require_whole(prepared: Prepared) -> None:
    """An engine reads by address: beyond the end of a file there is no error message."""
    path, size = prepared.folder / WEIGHTS, prepared.record.get("size")
    if not path.is_file() or path.stat().st_size != size:
        raise ModelCorrupt(f"{path} is not as it was written; remove {prepared.folder} and load the model again")


@dataclass(frozen=True)
class _Form:
    """How an engine wants its weights."""

    engine: str
    weights: str
    format: int
    write: Callable[[Path, Path, Any], Places]


def _form(engine: str, int8: bool, half: bool) -> _Form:
    # Imported when needed: each needs what only its engine does.
    if engine == "numba":
        from outrider.models import jit_files

        kept = "float16" if half else "bfloat16"
        return _Form(
            engine, kept, jit_files.FORMAT, lambda to, source, config: jit_files.write(to, source, config, half)
        )
    from outrider.models import onnx_llama

    weights = "int8" if int8 else "float32"
    return _Form(
        engine, weights, onnx_llama.FORMAT, lambda to, source, config: onnx_llama.write(to, source, config, int8)
    )


def _make(folder: Path, source: Path, config: Any, form: _Form) -> Path:
    folder.mkdir()
    places = form.write(folder, source, config)
    size = (folder / WEIGHTS).stat().st_size
    record = {"source": str(source.resolve()), "weights": form.weights, "size": size, "places": places}
    _write_record(folder, record)
    before = [f"{form.engine}-*/{RECORD}", f"onnx-*/{RECORD}"]  # the second: as they were called at first
    for old in (path for pattern in before for path in cache_dir().glob(pattern)):  # of the checkpoint as it was
        known = json.loads(old.read_text(encoding="utf-8"))
        if all(known.get(name) == record[name] for name in ("source", "weights")):
            shutil.rmtree(old.parent, ignore_errors=True)
    return folder


def _key(source: Path, form: _Form) -> str:
    """By what the files are made from: another checkpoint, another setting or another layout is another key."""
    files = sorted(file for file in source.iterdir() if file.suffix in (".safetensors", ".json"))
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((form.format, form.weights, str(source.resolve()), facts)).encode()).hexdigest()[:32]


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    """Whole or not at all: another process may be reading it."""
    draft = folder / f".{RECORD}.{os.getpid()}"
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / RECORD)
