"""Reads result files of any kind: one JSON object, or one per line. What cannot be read is named by file and line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import BadOption, require
from outrider.report.charts import Chapter
from outrider.report.kinds import KINDS, ResultKind
from outrider.report.result_entry import ResultEntry

AGAIN = "run the command that writes it again; `batch` and others that resume go on from the lines before"
OTHER = "run the command that writes it again, or name a file that --out, --json or --trace wrote"


@dataclass(frozen=True)
class ResultFile:
    """A file, what kind of result it is, and its records."""

    path: Path
    kind: ResultKind
    records: tuple[ResultEntry, ...]

    def chapter(self) -> Chapter:
        return self.kind.chapter(self.records)


def read_results(paths: Sequence[Path]) -> list[ResultFile]:
    """All of them, each once."""
    require(len(paths) > 0, "no result file; name at least one that --out, --json or --trace wrote")
    seen: dict[tuple[int, int], Path] = {}
    found = []
    for path in paths:
        text = _text(path)
        status = path.stat()
        other = seen.setdefault((status.st_dev, status.st_ino), path)
        same = f" (as {other}, too)" if str(other) != str(path) else ""
        require(other is path, f"{path} is named twice{same}; name each result file once")
        found.append(_result(path, _records(path, text)))
    return found


def _text(path: Path) -> str:
    require(not path.is_dir(), f"{path}: this is a directory; name the result files in it")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadOption(f"{path}: cannot be read ({error.strerror}); name a file that --out wrote") from None
    require(
        data.strip() != b"",
        f"{path}: the file is empty: no result was written to it; run the command that writes it to its end, or name "
        "another file",
    )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        byte = data[error.start]
        raise BadOption(
            f"{path}, line {line}: not a result file: byte 0x{byte:02x} is not UTF-8; name a file that --out wrote"
        ) from None
    require("\0" not in text, f"{path}: not a result file but binary data; name a file that --out wrote")
    return text


def _records(path: Path, text: str) -> tuple[ResultEntry, ...]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) == 1:
        return (_parsed(path, lines[0][1], lines[0][0], str(path)),)
    if not _is_object(lines[0][1]):
        return (_parsed(path, text, 1, str(path)),)
    return tuple(_parsed(path, line, number, f"{path}, line {number}") for number, line in lines)


def _is_object(line: str) -> bool:
    """Whether a line is a whole JSON object by itself, as every line of a file of lines is."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _parsed(path: Path, text: str, first_line: int, place: str) -> ResultEntry:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        line, rest = first_line + error.lineno - 1, text[error.pos :].strip()
        cut = not rest or error.msg.startswith("Unterminated") or any(w.startswith(rest) for w in _WORDS)
        what = f"cut off here; {AGAIN}" if cut else f"not JSON ({error.msg}); {OTHER}"
        raise BadOption(f"{path}, line {line}, column {error.colno}: {what}") from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of thousands of digits
        where = str(path) if "\n" in text.strip() else f"{path}, line {first_line}"
        raise BadOption(f"{where}: cannot be read as JSON ({error}); {OTHER}") from None
    if not isinstance(value, dict):
        what = f"a result is a JSON object, this is {_JSON[type(value)]}"
        raise BadOption(f"{place}: {what}; name a file that --out wrote")
    return ResultEntry(value, place)


_JSON = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}
"""What values of JSON but objects are called."""

_WORDS = ("true", "false", "null", "-")


def _result(path: Path, records: tuple[ResultEntry, ...]) -> ResultFile:
    first = records[0]
    named = first.value.get("kind")
    kind = next((k for k in KINDS if (named == k.name if isinstance(named, str) else k.recognises(first.value))), None)
    if kind is None:
        what = f"kind {named!r} is" if isinstance(named, str) else f"its keys ({_keys(first)}) are those of"
        names = ", ".join(known.name for known in KINDS)
        raise BadOption(f"{first.place}: {what} no result that this version knows; known: {names}")
    named_so = f"{'an' if kind.name[0] in 'aeiou' else 'a'} {kind.name}"
    version = first.value.get(kind.version_key, kind.version)
    if version != kind.version:
        raise BadOption(
            f"{first.place}, key {kind.version_key}: version {version!r} of {named_so} result, and this "
            f"Outrider reads version {kind.version}; use the Outrider that wrote it, or measure again"
        )
    if not kind.lines and len(records) > 1:
        rule = f"{named_so} result is one JSON object in a file of its own, and here a second begins"
        raise BadOption(f"{records[1].place}: {rule}; {OTHER}")
    return ResultFile(path, kind, records)


def _keys(entry: ResultEntry) -> str:
    names = [str(name) for name in entry.value]
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "none"
