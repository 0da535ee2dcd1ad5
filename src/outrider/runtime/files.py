"""Atomic writes (flushed to the disk, then renamed), and locks between processes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console


def note(text: str) -> None:
    """One line on standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(text, markup=False)


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader, and a crash at any moment, finds the old content or the new one.

    A rename alone is not enough: after a power cut the new name may stand for a file whose content never reached the
    disk. So the content is flushed to the disk, then renamed, then the directory is flushed.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _flush(path.parent)


def replace_whole(made: Path, final: Path) -> None:
    """Give a finished file or directory its final name once all of it is on the disk; see ``write_whole``."""
    flush_all(made)
    os.replace(made, final)
    _flush(final.parent)


def flush_all(made: Path) -> None:
    """Wait until a file, or a directory with everything in it, is on the disk."""
    for path in (*made.rglob("*"), made):
        _flush(path)


def _flush(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    if os.name == "nt":  # neither directories nor files opened for reading can be flushed there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock of this name. Where another process has it, say what is waited for. A dead holder's is free."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        note(waiting)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def writable(folder: Path) -> bool:
    """Whether this process can make files in an existing directory."""
    return os.access(folder, os.W_OK | os.X_OK)


def refused(folder: Path, therefore: str) -> str:
    """The words for a cache that cannot be written: where it is, what follows from that, and what to set."""
    return f"the cache at {folder} cannot be written: {therefore}; set OUTRIDER_CACHE to a directory that can be"


@cache
def note_refused(folder: Path, therefore: str) -> None:
    """Say so, once in a process."""
    note(refused(folder, therefore))
