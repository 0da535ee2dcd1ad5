"""``outrider paper --out``: the tables of the papers, theirs beside ours, their figures, and both speed-ups as bars."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.report.charts import (
    Bar,
    BarChart,
    BarRow,
    Chapter,
    Chart,
    ColouredTrace,
    DataTable,
    Headline,
    ReportBlock,
    ReportSection,
    section,
    sections,
)
from outrider.report.kinds.paper_figures import charts as figures
from outrider.report.kinds.stats import conditions
from outrider.report.picture_json import from_json
from outrider.report.result_entry import ResultEntry
from outrider.report.side_by_side import tables

SPEED = "speed-up"
Run = tuple[tuple[str, str], ...]
"""What tells runs of the same units apart: machine, versions and settings."""


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    runs: dict[Run, list[ResultEntry]] = {}
    for record in records:
        runs.setdefault(_run(record), []).append(record)
    found = [_section(own, run, list(runs)) for run, several in runs.items() for own in _by_experiment(several)]
    rows = [row for record in records for row in record.each("rows")]
    empty = sum(bool(row.text("why")) for row in rows)
    headlines = (
        Headline("Tables and figures", str(len(found)), "of three papers"),
        Headline("Rows", str(len(rows)), f"{empty} with an empty cell, and its reason"),
    )
    facts = conditions(records[0], "machine") if len(runs) == 1 else ()
    missing = ("What the papers draw and do not print as numbers: their curves are not read off.",)
    return Chapter("The papers, regenerated", headlines, facts, sections(*found), missing)


def chart_of(records: Sequence[ResultEntry]) -> list[Chart]:
    """All figures and bars of one experiment's records."""
    name, title = records[0].text("experiment"), _title(records[0])
    blocks = _blocks(name, title, records)
    return [block for block in blocks if block is not None and not isinstance(block, (DataTable, ColouredTrace))]


def _run(record: ResultEntry) -> Run:
    found = {**record.at("machine").mapping(), **record.at("settings").mapping()}
    return tuple((name, str(value)) for name, value in found.items())


def _by_experiment(records: Sequence[ResultEntry]) -> list[list[ResultEntry]]:
    names = dict.fromkeys(record.text("experiment") for record in records)
    return [[record for record in records if record.text("experiment") == name] for name in names]


def _section(records: Sequence[ResultEntry], run: Run, runs: Sequence[Run]) -> ReportSection | None:
    """With what tells this run from the others of the file, and what other programs took meanwhile."""
    name, title = records[0].text("experiment"), _title(records[0])
    said = [f"Why ours differ: {records[0].text('differs')}"]
    others = [dict(other) for other in runs]
    apart = [f"{key} {value}" for key, value in run if any(other.get(key) != value for other in others)]
    said += [f"This run: {', '.join(apart)}."] if apart else []
    said += list(dict.fromkeys(str(note.value) for record in records for note in record.each("notes")))
    busy = [f"{record.text('unit')} ({record.number('others_cores'):.1f} cores)" for record in records
            if (record.known("others_cores") or 0) > BUSY]  # fmt: skip
    said += [f"Other programs were busy meanwhile: {'; '.join(busy)}."] if busy else []
    return section(title, _blocks(name, title, records), " ".join(said))


BUSY = 0.2
"""Cores that others may use before it is said."""


def _title(record: ResultEntry) -> str:
    return f"{record.text('paper')}, {record.text('title')}"


def _blocks(name: str, title: str, records: Sequence[ResultEntry]) -> list[ReportBlock | None]:
    rows = [row for record in records for row in record.each("rows")]
    for row in rows:
        for key in ("about", "theirs", "ours"):
            row.at(key).mapping()
        row.text("why")
    pictures = [from_json(picture) for record in records for picture in record.each("pictures")]
    shown = [
        DataTable(title, tuple(header), tuple(map(tuple, body)), frozenset(range(1, len(header))))
        for header, body in tables([row.mapping() for row in rows])
    ]
    return [*figures(name, rows), _bars(name, title, rows), *pictures, *shown]


def _bars(name: str, title: str, rows: Sequence[ResultEntry]) -> BarChart | None:
    """Where both are known: elsewhere there is nothing to compare."""
    both = [row for row in rows if row.at("theirs").has(SPEED) and row.at("ours").has(SPEED)]
    if not both:
        return None
    found = tuple(
        BarRow(
            ", ".join(str(value) for value in row.at("about").mapping().values() if value is not None),
            tuple(Bar(row.at(side).number(SPEED)) for side in ("theirs", "ours")),
        )
        for row in both
    )
    return BarChart(name, title, SPEED, ("theirs", "ours"), found, reference=(1.0, "plain decoding"))
