"""The results of ``outrider paper``: a line of JSON for every finished unit, from which an interrupted run goes on.

A file may hold units of several machines and versions: each is found again only where it was run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.errors import BadOption, decode_utf8, require
from outrider.report.picture_json import from_json
from outrider.report.result_entry import ResultEntry
from outrider.trace import strict_json

KIND, VERSION = "outrider paper", 2
BEGINNING = strict_json({"kind": KIND})[:-1]
"""What every line begins with, and what a line that was cut off while it was written is a part of."""
KEYS = (
    "kind",
    "version",
    "paper",
    "experiment",
    "title",
    "differs",
    "unit",
    "settings",
    "machine",
    "rows",
    "pictures",
    "notes",
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
        """What a file holds already. A last line that a killed process left unfinished is cut off, nothing else."""
        if path is None or not path.exists():
            return PaperResults(path)
        text = decode_utf8(f"results file {path}", path.read_bytes())
        records, kept = _read(path, text)
        if kept != text:
            with path.open("r+b") as file:
                file.truncate(len(kept.encode()))
        if kept and not kept.endswith("\n"):  # killed between the record and the end of its line
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        return PaperResults(path, records)

    def find(
        self, experiment: str, unit: str, settings: Mapping[str, Any], machine: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The record of a unit that was run with these settings, on this machine, by this Outrider."""
        wanted = (experiment, unit, dict(settings), dict(machine))
        for record in self.records:
            if (record["experiment"], record["unit"], record["settings"], record["machine"]) == wanted:
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


def _read(path: Path, text: str) -> tuple[list[dict[str, Any]], str]:
    """The records, and the text without a line that was being written when a process was killed."""
    records: list[dict[str, Any]] = []
    kept = ""
    *whole, last = text.split("\n")
    for number, line in enumerate([*(line + "\n" for line in whole), last], 1):
        if line.strip():
            try:
                record = json.loads(line)
            except ValueError:
                if line is last and _unfinished(line, bool(records)):
                    return records, kept
                raise BadOption(f"{path}, line {number}: not JSON; name another file, or remove the line") from None
            _check(path, number, record)
            records.append(record)
        kept += line
    return records, kept


def _unfinished(line: str, behind_others: bool) -> bool:
    """Whether a line is the beginning of one of ours: what a user has written is refused, never cut off."""
    return line.startswith(BEGINNING) or (behind_others and BEGINNING.startswith(line))


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
    for number, picture in enumerate(record["pictures"] if isinstance(record["pictures"], list) else [None]):
        from_json(ResultEntry(picture, where, f"pictures[{number}]"))
