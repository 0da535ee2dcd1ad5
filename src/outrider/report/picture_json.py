"""Traces and time lines in a result file: written by ``outrider paper``, drawn by ``outrider report``."""

from __future__ import annotations

from typing import Any

from outrider.report.charts import ColouredTrace, TimeLine, TimeLines, TimePart, TracePart
from outrider.report.result_entry import ResultEntry

TRACE, TIMES = "trace", "time lines"
ORIGINS = ("accepted", "rejected", "unread", "corrected", "bonus", "plain")


def to_json(picture: ColouredTrace | TimeLines) -> dict[str, Any]:
    if isinstance(picture, ColouredTrace):
        runs = [[[part.origin, part.text] for part in run] for run in picture.runs]
        return {"picture": TRACE, "title": picture.title, "runs": runs}
    return {
        "picture": TIMES, "name": picture.name, "title": picture.title, "unit": picture.unit,
        "letters": dict(picture.letters), "ends": picture.ends, "note": picture.note,
        "lines": [{"label": line.label, "parts": [[part.kind, round(part.length, 4)] for part in line.parts]}
                  for line in picture.lines],
    }  # fmt: skip


def from_json(entry: ResultEntry) -> ColouredTrace | TimeLines:
    """What is in an entry; one that is not as written is named."""
    kind = entry.text("picture")
    if kind == TRACE:
        return ColouredTrace(entry.text("title"), tuple(tuple(map(_trace_part, _list(r))) for r in entry.each("runs")))
    if kind != TIMES:
        raise entry.fail("picture", f"not {TRACE!r} or {TIMES!r} but {kind!r}")
    letters = {name: letter.value for name, letter in entry.items("letters").items()}
    lines = tuple(
        TimeLine(line.text("label"), tuple(_time_part(part, letters) for part in line.each("parts")))
        for line in entry.each("lines")
    )
    return TimeLines(
        entry.text("name"), entry.text("title"), entry.text("unit"), letters, entry.text("ends"), lines,
        entry.text("note"),
    )  # fmt: skip


def _list(entry: ResultEntry) -> list[ResultEntry]:
    if not isinstance(entry.value, list):
        raise entry.fail("", "not a list of parts")
    return [ResultEntry(value, entry.place, f"{entry.key}[{i}]") for i, value in enumerate(entry.value)]


def _trace_part(entry: ResultEntry) -> TracePart:
    value = entry.value
    good = isinstance(value, list) and len(value) == 2 and value[0] in ORIGINS and isinstance(value[1], str)
    if not good:
        raise entry.fail("", f"not one of {', '.join(ORIGINS)} and its text")
    return TracePart(*value)


def _time_part(entry: ResultEntry, letters: dict[str, Any]) -> TimePart:
    value = entry.value
    good = isinstance(value, list) and len(value) == 2 and value[0] in letters
    if not good or isinstance(value[1], bool) or not isinstance(value[1], (int, float)) or not 0 <= value[1] < 1e12:
        raise entry.fail("", f"not one of {', '.join(letters)} and its time")
    return TimePart(value[0], float(value[1]))
