"""Checksums of files, remembered as long as a file is the same by size, time of change and inode."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from rich.console import Console

from outrider.runtime.cache_dir import cache_dir
from outrider.runtime.files import write_whole

FOLDER = "checksums"
_LARGE = 1_000_000_000
"""Bytes that take more than a moment to read."""


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_sha256(path: Path, *, keep: bool = True) -> str:
    """The checksum of a file, computed when it is not known yet; ``keep`` it for the next process."""
    record = cache_dir() / FOLDER / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"
    stamp = _stamp(path)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["stamp"] == stamp:
            return str(known["sha256"])
    large = stamp[0] > _LARGE
    with Console(stderr=True).status(f"Reading {path.name} (once)") if large else contextlib.nullcontext():
        found = sha256(path)
    if keep and _stamp(path) == stamp:  # or it is being written to
        with contextlib.suppress(OSError):  # a cache that cannot be written
            record.parent.mkdir(parents=True, exist_ok=True)
            write_whole(record, json.dumps({"path": str(path.resolve()), "stamp": stamp, "sha256": found}) + "\n")
    return found


def _stamp(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns, facts.st_ino]
