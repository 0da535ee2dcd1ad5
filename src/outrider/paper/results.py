"""The results of ``outrider paper``: a line of JSON for every finished unit, from which an interrupted run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.errors import BadOption, decode_utf8, require
from outrider.trace import strict_json

KIND, VERSION = "outrider paper", 1
KEYS = (
    "kind",
    "version",
    "paper",
    "experiment",
    "title",
    "unit",
    "settings",
    "machine",
    "rows",
    "lines",
    "seconds",
    "others_cores",
)


@dataclass
class PaperResults:
    """A file of them, or none: then they are kept for this run only."""

    path: Path | None
    records: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def at(path: Path | None) -> PaperResults:
        """What a file holds already. A last line that a killed process left unfinished is cut off."""
        if path is None or not path.exists():
            return PaperResults(path)
        text = decode_utf8(f"results file {path}", path.read_bytes())
        records = list(_read(path, text))
        whole = "".join(strict_json(record) + "\n" for record in records)
        if whole != text:
            part = path.with_name(path.name + ".part")
            part.write_text(whole, encoding="utf-8")
            part.replace(path)
        return PaperResults(path, records)

    def find(self, experiment: str, unit: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record of a unit that was run with these settings."""
        for record in self.records:
            if (record["experiment"], record["unit"], record["settings"]) == (experiment, unit, dict(settings)):
                return record
        return None

    def add(self, record: dict[str, Any]) -> None:
        """Written and flushed to the disk before the next unit begins."""
        assert set(record) == set(KEYS)
        self.records.append(record)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(strict_json(record) + "\n")
                file.flush()
                os.fsync(file.fileno())


def _read(path: Path, text: str) -> Iterator[dict[str, Any]]:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):  # without its end of line: the process was killed while writing
                return
            raise BadOption(f"{path}, line {number}: not JSON; name another file, or remove the line") from None
        _check(path, number, record)
        yield record


def _check(path: Path, number: int, record: Any) -> None:
    where = f"{path}, line {number}"
    require(isinstance(record, dict) and record.get("kind") == KIND,
            f"{where}: not written by `outrider paper`; name another file")  # fmt: skip
    require(record.get("version") == VERSION,
            f"{where}, version: {record.get('version')!r} is not {VERSION}, which this Outrider reads; run `outrider "
            "paper` again with another file")  # fmt: skip
    missing = [key for key in KEYS if key not in record]
    require(not missing, f"{where}, {', '.join(missing)}: missing; remove the line to have the unit run again")
    rows = record["rows"] if isinstance(record["rows"], list) else [None]
    whole = all(isinstance(row, dict) and set(row) >= {"about", "theirs", "ours", "why"} for row in rows)
    require(whole, f"{where}, rows: not as `outrider paper` writes them; remove the line to have the unit run again")
