"""Where models live: names to directories, fetching, converting once, and checking what is there.

A converted model is a directory in the cache with an ``outrider.json`` beside the weights. It is made
under a temporary name and renamed when whole, by the one process that holds the name's lock, so a
directory under its final name is always complete and whatever an interruption left is the next
holder's to sweep away. Nothing here imports torch or transformers before a conversion starts.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata as packages
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console

from outrider.errors import ModelCorrupt, ModelError, ModelNotFound, PullFailed
from outrider.models import gguf, pairs
from outrider.models.gguf import KNOWN, MB
from outrider.models.weights import check_length
from outrider.places import cache_dir

NAMES = (*KNOWN, *pairs.SHIPPED)

MANIFEST = "outrider.json"
FILE_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")


@dataclass(frozen=True)
class Installed:
    """One converted model in the cache."""

    name: str
    path: Path
    size: int  # bytes
    source: str
    licence: str | None


# --- names -----------------------------------------------------------------------------------------


def resolve(name: str, *, pull: bool = True) -> Path | str:
    """The directory a model's name stands for, made first if need be; a hub id comes back unchanged.

    A short name wins over a directory of the same name: write ``./NAME`` for the directory. With
    ``pull=False`` nothing is fetched or converted, and what is not there raises ModelNotFound.
    """
    if name in KNOWN:
        return _ready(name, cache_dir() / name, pull)
    pair = pairs.find(name)
    path = Path(name).expanduser() if pair is None else pair / "target"
    if path.is_dir():
        check_directory(path)
        return path
    if path.is_file():
        if not _is_gguf(path):
            raise ModelNotFound(f"model {name} is a file; name a .gguf file or a model's directory")
        return _ready(name, _converted_path(path), pull)
    if not name.strip() or _looks_like_path(name):
        raise ModelNotFound(f"model {name!r}: no such file or directory; known names: {', '.join(NAMES)}")
    close = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.6)
    if "/" not in name and close:
        raise ModelNotFound(f"model {name!r} is not known; did you mean {close[0]}?")
    return name


def _ready(name: str, path: Path, fetch: bool) -> Path:
    if path.is_dir():
        check(path, full=False)
        return path
    if not fetch:
        raise ModelNotFound(f"model {name} is not in {cache_dir()} yet; run: outrider models pull {name}")
    return pull(name)


def _looks_like_path(name: str) -> bool:
    start = name.startswith((".", "/", "~", "\\"))
    return start or name.endswith(FILE_SUFFIXES) or name.count("/") > 1 or "\\" in name


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf"


def _converted_path(path: Path) -> Path:
    # By content, so that a moved file is not converted again and a changed one is.
    return cache_dir() / f"gguf-{gguf.sha256(path)[:32]}"


# --- fetching and converting -----------------------------------------------------------------------


def pull(name: str, *, force: bool = False) -> Path:
    """Fetch and convert a known model, or convert a ``.gguf`` file; return the finished directory."""
    if known := KNOWN.get(name):
        return _build(name, cache_dir() / name, partial(gguf.fetch, known), known.needed_bytes, force)
    if name in pairs.SHIPPED:
        if force:
            raise ModelError(f"{name} comes with the package and cannot be fetched again; install outrider again")
        return Path(resolve(name))
    path = Path(name).expanduser()
    if path.is_file() and _is_gguf(path):
        # The name is recorded for the remedies, which may be typed in another directory.
        return _build(str(path.resolve()), _converted_path(path), lambda _: path, 0, force)
    resolve(name, pull=False)  # a misspelt name or a missing file says so here
    raise ModelNotFound(f"model {name!r} cannot be pulled; known: {', '.join(KNOWN)}, or a .gguf file")


def _build(name: str, final: Path, fetch: Callable[[Path], Path], needed: int, force: bool) -> Path:
    """Make ``final`` out of the GGUF file that ``fetch(stage)`` returns, whole or not at all."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final, console), _stage(final) as stage:
            if final.is_dir() and not force:  # another process was faster
                check(final, full=False)
                return final
            _require_space(name, final.parent, needed)
            file = fetch(stage)
            header = gguf.read_header(file)
            needed = max(needed, header.converted_bytes)
            _require_space(name, final.parent, header.converted_bytes)
            made = stage / "model"
            made.mkdir()
            with console.status(f"Converting {file.name} to safetensors (once)"):
                gguf.convert(file, header, made)
                _write_manifest(made, name, file, header.metadata)
            if final.exists():
                final.rename(stage / "replaced")
            made.rename(final)
    except ModelError:
        raise
    except Exception as error:
        raise _explained(error, name, final.parent, needed) from error
    console.print(f"{name}: ready in {final}")
    return final


@contextlib.contextmanager
def making(name: str, final: Path, needed: int, console: Console) -> Iterator[Path]:
    """A directory to make ``final`` in, while no other process does; whatever goes wrong says what to do."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final, console), _stage(final) as stage:
            _require_space(name, final.parent, needed)
            yield stage
    except ModelError:
        raise
    except Exception as error:
        raise _explained(error, name, final.parent, needed) from error


@contextlib.contextmanager
def _locked(final: Path, console: Console) -> Iterator[None]:
    lock = FileLock(final.parent / f".{final.name}.lock")  # freed by the system if its holder dies
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.print(f"Waiting for another process that is making {final.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _stage(final: Path) -> Iterator[Path]:
    """A temporary directory beside ``final``; the lock is held, so any other one is a dead process's."""
    prefix = f".{final.name}.partial-"
    for stale in final.parent.glob(prefix + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    stage = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _require_space(name: str, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PullFailed(_space_message(name, folder, needed, f"{free // MB} MB are free"))


def _explained(error: Exception, name: str, folder: Path, needed: int) -> ModelError:
    """Whatever stopped a pull, as an error that says what to do."""
    # safetensors raises its own class with the system's words in it.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or gguf.says_no_space(str(error)):
        return PullFailed(_space_message(name, folder, needed, "the disk is full"))
    if isinstance(error, OSError):
        return PullFailed(f"{name}: {error}; another place for models: OUTRIDER_CACHE=/some/where")
    return PullFailed(f"{name} cannot be converted: {gguf.brief(error)}")


def _space_message(name: str, folder: Path, needed: int, found: str) -> str:
    wanted = f"{name} needs {-(-needed // MB)} MB in {folder} while it is made"
    return f"{wanted}, and {found}; free some, or name another place: OUTRIDER_CACHE=/some/where"


# --- what is there ---------------------------------------------------------------------------------


def _write_manifest(folder: Path, name: str, source: Path, metadata: gguf.Metadata) -> None:
    known = KNOWN.get(name)
    files = sorted(folder.iterdir())
    record = {
        "format": 1,
        "name": name,
        "source": f"{known.requirement} (PyPI), {known.member}" if known else str(source.resolve()),
        "licence": known.licence if known else metadata.get("general.license"),
        "gguf_sha256": gguf.sha256(source),
        "files": {file.name: {"bytes": file.stat().st_size, "sha256": gguf.sha256(file)} for file in files},
        "versions": {package: packages.version(package) for package in ("torch", "transformers", "gguf")},
    }
    (folder / MANIFEST).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


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
        if full and gguf.sha256(file) != entry["sha256"]:
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
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        old = next(path.glob("*.bin"), None)
        raise ModelCorrupt(
            f"model {path} has {old.name if old else 'no weights'}, and *.safetensors is required; convert "
            "it with transformers: AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW)"
        )
    index = path / "model.safetensors.index.json"
    named = set(_read_json(index).get("weight_map", {}).values())
    if missing := sorted(named - {file.name for file in weights}):
        raise ModelCorrupt(f"model {path}: {missing[0]}, named in {index.name}, is missing; copy it again")
    for file in weights:
        check_length(file)


def _read_manifest(folder: Path) -> dict[str, Any]:
    record = _read_json(folder / MANIFEST)
    if not {"name", "source", "licence", "files"} <= record.keys():
        raise ModelCorrupt(f"{folder / MANIFEST} is incomplete; run: outrider models pull {folder.name} --force")
    return record


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelCorrupt(f"{file} cannot be read ({error}); get the model again") from error
    return content if isinstance(content, dict) else {}
