"""Where the lines of a batch go: a file that an interrupted run can be resumed from, or a stream."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from filelock import FileLock, Timeout

from outrider.errors import BadOption, require

START = b'{"index":'


class Results(Protocol):
    """Records of lines, written in the order they finish."""

    done: set[int]  # lines that need no work any more
    remedy: str  # how to go on after an interruption

    def write(self, index: int, record: Mapping[str, Any]) -> None: ...

    def close(self, complete: bool = False) -> None: ...


def results(out: Path | None, keys: Mapping[int, str]) -> Results:
    """A file of lines, continued if it is there; standard output or a device for everything else."""
    if out is None:
        return Stream(sys.stdout)
    return Stream(out.open("w", encoding="utf-8")) if out.exists() and not out.is_file() else File(out, keys)


class Stream:
    """Lines in order: one that is finished before its turn waits."""

    remedy = "with --out FILE a run can be resumed"

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.done: set[int] = set()
        self._waiting: dict[int, str] = {}
        self._next = 0

    def write(self, index: int, record: Mapping[str, Any]) -> None:
        self._waiting[index] = json.dumps(record, allow_nan=False)
        self.done.add(index)
        while self._next in self._waiting:
            self.file.write(self._waiting.pop(self._next) + "\n")
            self._next += 1
        self.file.flush()

    def close(self, complete: bool = False) -> None:
        """After an interruption, what waited for its turn is written all the same."""
        for index in sorted(self._waiting):
            self.file.write(self._waiting.pop(index) + "\n")
        self.file.flush()


class File:
    """Lines as they finish, each at once, so that nothing is lost; in order when the run is complete."""

    remedy = "the same command goes on from there"

    def __init__(self, path: Path, keys: Mapping[int, str]) -> None:
        self.path = path = path.resolve()
        lock = path.with_name(f".{path.name}.lock")
        try:
            lock.touch()  # where no file can be made, the lock would only say that it is taken
        except OSError as error:
            raise BadOption(
                f"{path}: no file can be written in {path.parent} ({error.strerror}); name another place"
            ) from None
        self._lock = FileLock(lock)  # of a dead process it is free
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise BadOption(f"another process is writing to {path}; wait for it, or name another file") from None
        kept = _kept(path, keys)
        self.order = list(kept)  # index of each line of the file
        self.done = set(kept)
        if path.exists():
            _replace(path, list(kept.values()))  # without failed and unfinished lines
        self._file = path.open("ab")

    def write(self, index: int, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.order.append(index)
        self.done.add(index)

    def close(self, complete: bool = False) -> None:
        self._file.close()
        if complete and self.order != sorted(self.order):
            lines = self.path.read_bytes().split(b"\n")
            _replace(self.path, [line for _, line in sorted(zip(self.order, lines, strict=False))])
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()


def _kept(path: Path, keys: Mapping[int, str]) -> dict[int, bytes]:
    """The texts of an earlier run. What it could not generate is tried again; a file of anything else is refused."""
    kept: dict[int, bytes] = {}
    rows = path.read_bytes().split(b"\n") if path.exists() else []
    for number, row in enumerate(rows, 1):
        if row == b"":
            continue
        if number == len(rows) and row[: len(START)] == START[: len(row)]:  # written when the process was killed
            break
        try:
            record = json.loads(row)
            index, key, failed = record["index"], record["key"], record.get("error") is not None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadOption(
                f"{path}, line {number}: not written by `outrider batch` or `outrider generate --prompts`; "
                "name another file"
            ) from None
        require(
            failed or keys.get(index) == key,
            f"{path}, line {number}: written for another prompt, target or option; name another file, or remove "
            "this one to start over",
        )
        if not failed:
            kept[index] = row
    return kept


def _replace(path: Path, lines: list[bytes]) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
