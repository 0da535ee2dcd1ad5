"""numba's compiled code on disk: compiled by one process, read by all others, removed when long unused."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import njit
from numba.core.caching import FunctionCache

from outrider.runtime import cpu
from outrider.runtime.cache_dir import cache_dir
from outrider.runtime.files import flush_all, locked, note, note_refused, writable

# Sums may be taken in any order, decided once and for all when a function is compiled.
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}

STRICT: dict[str, Any] = OPTIONS | {"fastmath": False}
"""For functions compiled as they are written: no multiplication is fused with an addition, and no sum is reordered. It
must be said: a function that says nothing of it is compiled as those that call it are."""

_UNUSED = 30 * 24 * 3600.0
"""Seconds after which code that no process has used is removed."""


def _digest() -> str:
    """Of everything that is compiled: other kernels may have other bits."""
    files = sorted(path for path in Path(__file__).parent.glob("*.py") if path != Path(__file__))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


DIGEST = _digest()


def _compiler() -> str:
    """Of everything else that code is compiled by and for, so that all in one directory is of use here."""
    target = (
        numba.config.CPU_NAME or get_host_cpu_name(),
        numba.config.CPU_FEATURES or get_host_cpu_features().flatten(),
    )
    chosen = sorted(cpu.facts().compiler)  # kernels are written for these, whatever the compiler could use
    told = (numba.__version__, sys.implementation.cache_tag, target, chosen, str(Path(__file__).parent))
    return hashlib.sha256(repr(told).encode()).hexdigest()[:8]


@cache
def code_folder_in(folder: Path) -> Path:
    """The directory for compiled code; a temporary copy of it, for this process, where it cannot be written."""
    place = folder / f"compiled-{DIGEST}-{_compiler()}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not writable(place):
            raise PermissionError(13, "Permission denied")
        os.utime(place)  # used now
        _remove_unused(folder)
        for file in place.rglob("*.nb[ic]"):
            if not file.stat().st_size:  # after a power cut, and numba would fail on it at every start
                file.unlink()
    except OSError:
        # numba writes where it reads, and would look for another place, where it does not notice our changes.
        copied = Path(tempfile.mkdtemp(prefix="outrider-compiled-"))
        atexit.register(shutil.rmtree, copied, ignore_errors=True)
        with contextlib.suppress(OSError):
            shutil.copytree(place, copied, dirs_exist_ok=True, copy_function=shutil.copyfile)
        return copied
    return place


def code_folder() -> Path:
    return code_folder_in(cache_dir())


def _remove_unused(folder: Path) -> None:
    """Remove compiled code that was not used for long. Other versions of this package may still use theirs."""
    before = time.time() - _UNUSED
    for old in folder.glob("compiled-*"):
        with contextlib.suppress(OSError):
            if old.stat().st_mtime < before:
                shutil.rmtree(old, ignore_errors=True)


def _is_compiled(function: str) -> bool:
    return any(code_folder().rglob(f"*.{function}-*.nbc"))


@contextlib.contextmanager
def compiling(function: str, what: str, seconds: int) -> Iterator[None]:
    """Around the first call of a function that is ``on_disk``: one process compiles it, any other waits for that.

    ``what`` it is and how many ``seconds`` it takes are said where it is not compiled yet.
    """
    if _is_compiled(function):
        yield
        return
    if cache_dir() not in code_folder().parents:
        note_refused(cache_dir(), f"compiling {what} at every start, about {seconds} seconds")
        yield
        return
    with locked(code_folder() / f".{function}.lock", f"Waiting for another process that is compiling {what}"):
        if not _is_compiled(function):
            note(f"Compiling {what} for this CPU (once, about {seconds} seconds)")
        yield
        flush_all(code_folder())


class _SharedCache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """numba's cache of one function, which several processes may add to at once.

    numba looks for a free file name and takes it later: of two processes that compiled for different types, one found
    the other's code under its name.
    """

    def save_overload(self, sig: Any, data: Any) -> None:
        with locked(Path(self.cache_path) / ".saving.lock", "Waiting for another process that is saving compiled code"):
            super().save_overload(sig, data)


def on_disk(function: Any, name: str | None = None) -> Any:
    """Compiled, and kept in the cache for the next process, until any of these files changes.

    ``name``: of a copy that is kept apart, for arguments of other types, which need code of their own.
    """
    if name is not None:
        function = FunctionType(function.__code__, function.__globals__, name)
        function.__qualname__ = name
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(code_folder())
    try:
        compiled = njit(**OPTIONS)(function)
        compiled._cache = _SharedCache(function)  # where cache=True puts numba's own
        return compiled
    finally:
        numba.config.CACHE_DIR = before


_native: list[Any] = []
"""Compiled functions whose addresses are in use."""


def native(function: Any, signature: Any) -> int:
    """The address of a function, compiled as it is written and kept in the cache as those ``on_disk``."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(code_folder())
    try:
        compiled = numba.cfunc(signature, cache=True, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before
    _native.append(compiled)
    return int(compiled.address)
