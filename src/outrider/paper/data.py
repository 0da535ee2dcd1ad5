"""Texts to measure on: those of the package, or files of the user's own (``--data``).

What a file holds is found out from its name and first line:

- lines of English TAB German (``.tsv``): translations
- JSON lines with ``article`` (or ``document``) and ``summary`` (or ``highlights``): summaries. Where lines have a
  ``split``, those with ``train`` are counted for n-gram tables and the others are asked; else half of them each.
- JSON lines as HumanEval has them, with ``prompt``, ``test`` and ``entry_point``: programs

Files may be packed (``.gz``).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from outrider.errors import BadOption, decode_utf8, require
from outrider.paper import texts
from outrider.paper.texts import Program

NAMES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")
KEYS = {"article": ("article", "document"), "summary": ("summary", "highlights")}
Pair = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class OwnTexts:
    """What is asked, and with what answers are compared."""

    translations: Sequence[Pair] = texts.TRANSLATIONS
    summaries: Sequence[Pair] = texts.SUMMARIES[::2]  # article and summary, to be asked
    counted: Sequence[Pair] = texts.SUMMARIES[1::2]  # what n-gram tables are counted on
    programs: Sequence[Program] = texts.PROGRAMS
    given: Mapping[str, str] = field(default_factory=dict)  # kinds that are not the package's own: how many, and which


def spread(found: Sequence[T], most: int) -> list[T]:
    """At most so many, from the whole length: files are often sorted."""
    return [found[place * len(found) // most] for place in range(most)] if len(found) > most else list(found)


def read(paths: Sequence[Path]) -> OwnTexts:
    """The texts of these files and directories, and the package's own of every kind that none of them holds."""
    files = [file for path in paths for file in _files(path)]
    kinds: dict[str, list[Any]] = {}
    digests: dict[str, Any] = {}
    for file in files:
        kind, rows, content = _rows(file)
        kinds.setdefault(kind, []).extend(rows)
        digests.setdefault(kind, hashlib.sha256()).update(content)
    given = {kind: f"{len(rows)} of sha256 {digests[kind].hexdigest()[:12]}" for kind, rows in kinds.items()}
    found = OwnTexts(given=given)
    if "summaries" in kinds:
        asked, counted = _halves(kinds["summaries"])
        found = OwnTexts(summaries=asked, counted=counted, given=given)
    return OwnTexts(
        kinds.get("translations", found.translations), found.summaries, found.counted,
        kinds.get("programs", found.programs), given,
    )  # fmt: skip


def _files(path: Path) -> list[Path]:
    require(path.exists(), f"--data {path}: there is no such file or directory")
    if not path.is_dir():
        require(path.name.endswith(NAMES), f"--data {path}: must be named {', '.join(NAMES)}; see docs/papers.md")
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(NAMES))
    require(bool(found), f"--data {path}: no file in this directory is named {', '.join(NAMES)}; see docs/papers.md")
    return found


def _rows(file: Path) -> tuple[str, list[Any], bytes]:
    """The kind of a file, its rows, and what it holds."""
    content = file.read_bytes()
    if file.name.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise BadOption(f"--data {file}: cannot be unpacked ({error}); pack it again with gzip") from None
    lines = list(_lines(file, decode_utf8(f"--data {file}", content)))
    require(bool(lines), f"--data {file} is empty; give it a text in each line")
    if ".tsv" in file.suffixes:
        return "translations", [_translation(where, line) for where, line in lines], content
    records = [(where, _record(where, line)) for where, line in lines]
    kind = "programs" if "test" in records[0][1] else "summaries"
    make = _program if kind == "programs" else _summary
    return kind, [make(where, record) for where, record in records], content


def _lines(file: Path, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if line.strip():
            yield f"--data {file}, line {number}", line.rstrip("\r")


def _translation(where: str, line: str) -> Pair:
    parts = line.split("\t")
    good = len(parts) == 2 and all(part.strip() for part in parts)
    require(good, f"{where}: must be an English sentence, a tab and its translation, got {line[:60]!r}")
    return parts[0].strip(), parts[1].strip()


def _record(where: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"{where}: not JSON ({error}); write one JSON object in each line") from None
    require(isinstance(record, dict), f"{where}: a line is a JSON object, got {line[:60]!r}")
    return dict(record)


def _text(where: str, record: Mapping[str, Any], names: Sequence[str]) -> str:
    value = next((record[name] for name in names if name in record), None)
    good = isinstance(value, str) and bool(value.strip())
    require(good, f"{where}, key {' or '.join(names)}: must be a text that is not empty, got {str(value)[:60]!r}")
    return str(value)


def _summary(where: str, record: Mapping[str, Any]) -> tuple[str, str, str]:
    article, summary = (_text(where, record, names) for names in KEYS.values())
    split = record.get("split", "")
    require(isinstance(split, str), f"{where}, key split: must be a text, such as train or test, got {split!r}")
    return article.strip(), summary.strip(), split


def _program(where: str, record: Mapping[str, Any]) -> Program:
    prompt, test = _text(where, record, ["prompt"]), _text(where, record, ["test"])
    if "entry_point" not in record:
        return Program(prompt, test)
    return Program(prompt, f"{test}\ncheck({_text(where, record, ['entry_point'])})")


def _halves(rows: Sequence[tuple[str, str, str]]) -> tuple[list[Pair], list[Pair]]:
    """Those that are asked, and those that tables are counted on."""
    counted = [row[:2] for row in rows if row[2] == "train"]
    asked = [row[:2] for row in rows if row[2] != "train"]
    return (asked, counted) if asked and counted else ([row[:2] for row in rows[::2]], [row[:2] for row in rows[1::2]])
