"""Where models live: names to directories, fetching, converting once, and checking what is there.

A converted model is a directory in the cache with an ``outrider.json`` beside the weights. It is made
under a temporary name and renamed when whole, by the one process that holds the name's lock, so a
directory under its final name is always complete and whatever an interruption left is the next
holder's to sweep away. Nothing here imports torch or transformers before a conversion starts.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from outrider.errors import ModelError, ModelNotFound
from outrider.models.hub import gguf, manifest, pairs, remote
from outrider.models.hub.checksums import remembered_sha256
from outrider.models.hub.gguf import KNOWN
from outrider.models.hub.making import CacheRefused, making, require_memory
from outrider.models.hub.safetensors_files import WEIGHTS, weight_files
from outrider.runtime.cache_dir import cache_dir
from outrider.runtime.files import note, replace_whole

NAMES = (*KNOWN, *pairs.SHIPPED)

FILE_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")


# --- names -----------------------------------------------------------------------------------------


def resolve(name: str, *, pull: bool = True) -> Path | str:
    """The directory a model's name stands for, made first if need be; a hub id comes back unchanged.

    A short name wins over a directory of the same name: write ``./NAME`` for the directory. With
    ``pull=False`` nothing is fetched or converted, and what is not there raises ModelNotFound.
    """
    try:
        return _resolved(name, pull)
    except ModelError:
        raise
    except (OSError, RuntimeError) as error:  # permission denied, a name too long, no home of that user
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelNotFound(f"model {name[:200]!r} cannot be looked at ({reason}); name another place") from error


def _resolved(name: str, pull: bool) -> Path | str:
    if name in KNOWN:
        return _ready(name, cache_dir() / name, pull)
    pair = pairs.find(name)
    path = Path(name).expanduser() if pair is None else pair / "target"
    if path.is_dir():
        manifest.check_directory(path)
        return path
    if path.is_file():
        if not _is_gguf(path):
            raise ModelNotFound(f"model {name} is a file; name a .gguf file or a model's directory")
        found = _ready(name, _converted_path(path, keep=pull), pull)
        if pull:
            _renew(name, found)
            manifest.note_place(found, path)
        return found
    if not name.strip() or _looks_like_path(name):
        raise ModelNotFound(f"model {name!r}: no such file or directory; known names: {', '.join(NAMES)}")
    close = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.6)
    if "/" not in name and close:
        raise ModelNotFound(f"model {name!r} is not known; did you mean {close[0]}?")
    return name


def directory(name: str, *, code: bool = False) -> Path:
    """The directory of a model by any name, fetched or converted first where that is needed: see ``resolve``.

    ``code``: fetch the Python files of a model on the hub, too.
    """
    found = resolve(name)
    if isinstance(found, str):
        found = remote.snapshot(found, NAMES, code=code)
        manifest.check_directory(found)
    return found


def _ready(name: str, path: Path, fetch: bool) -> Path:
    if path.is_dir():
        manifest.check(path, full=False)
        return path
    if not fetch:
        raise ModelNotFound(f"model {name} is not in {cache_dir()} yet; run: outrider models pull {name}")
    return pull(name)


def _renew(name: str, folder: Path) -> None:
    """Convert a file again whose settings were read by an earlier release; in a cache that can be written."""
    if not manifest.is_current(folder):
        with contextlib.suppress(CacheRefused):
            pull(name, force=True)


def _looks_like_path(name: str) -> bool:
    start = name.startswith((".", "/", "~", "\\"))
    return start or name.endswith(FILE_SUFFIXES) or name.count("/") > 1 or "\\" in name


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf"


def _converted_path(path: Path, *, keep: bool = True) -> Path:
    # By content, so that a moved file is not converted again and a changed one is.
    return cache_dir() / f"gguf-{remembered_sha256(path, keep=keep)[:32]}"


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
    with making(name, final, needed) as (stage, space):
        if final.is_dir() and not force:  # another process was faster
            manifest.check(final, full=False)
            return final
        space.require(needed)
        file = fetch(stage)
        header = gguf.read_header(file)
        made = stage / "model"
        made.mkdir()
        if header.weights is not None:  # they are run as they are, and stay where they are
            space.require(header.settings_bytes)
            with Console(stderr=True).status(f"Reading the settings of {file.name} (once)"):
                gguf.describe(file, header, made)
                if file.parent == stage:
                    file = file.rename(made / manifest.GGUF)
                manifest.write(made, name, file, header.metadata, header.weights)
        else:
            space.require(header.converted_bytes)
            require_memory(file.name, header.converted_bytes)
            with Console(stderr=True).status(f"Converting {file.name} to safetensors (once)"):
                gguf.convert(file, header, made)
                manifest.write(made, name, file, header.metadata)
        if final.exists():
            final.rename(stage / "replaced")
        replace_whole(made, final)
    note(f"{name}: ready in {final}")
    return final


def unpack(folder: Path) -> None:
    """Write the weights of a model that is run from its GGUF file as bfloat16 safetensors, for other engines; once."""
    packed = manifest.packed(folder)
    if packed is None or weight_files(folder):
        return
    source = packed.require()
    with making(source.name, folder / WEIGHTS, 0) as (stage, space):
        if weight_files(folder):  # another process was faster
            return
        header = gguf.read_header(source)
        space.require(header.converted_bytes)
        require_memory(source.name, header.converted_bytes)
        with Console(stderr=True).status(f"Unpacking {source.name} to bfloat16 (once)"):
            gguf.convert(source, header, stage)
            manifest.add_file(folder, stage / WEIGHTS)
