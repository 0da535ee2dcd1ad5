"""``outrider paper --out``: the tables of the papers, theirs beside ours, and both speed-ups as bars."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.report.charts import Bar, BarChart, BarRow, Chapter, DataTable, Headline, ReportBlock, section, sections
from outrider.report.kinds.stats import conditions
from outrider.report.result_entry import ResultEntry
from outrider.report.side_by_side import side_by_side

SPEED = "speed-up"
ELSEWHERE = ("Why ours differ from theirs: `outrider paper --page FILE` says it beside every table.",)


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    titles = {record.text("experiment"): f"{record.text('paper')}, {record.text('title')}" for record in records}
    found = [
        section(title, _blocks(name, title, [r for r in records if r.text("experiment") == name]))
        for name, title in titles.items()
    ]
    rows = [row for record in records for row in record.each("rows")]
    empty = sum(bool(row.text("why")) for row in rows)
    headlines = (
        Headline("Tables and figures", str(len(titles)), "of three papers"),
        Headline("Rows", str(len(rows)), f"{empty} with an empty cell, and its reason"),
    )
    return Chapter("The papers, regenerated", headlines, conditions(records[0], "machine"), sections(*found), ELSEWHERE)


def _blocks(name: str, title: str, records: Sequence[ResultEntry]) -> list[ReportBlock | None]:
    rows = [row for record in records for row in record.each("rows")]
    for row in rows:
        for key in ("about", "theirs", "ours"):
            row.at(key).mapping()
        row.text("why")
    header, body = side_by_side([row.mapping() for row in rows])
    table = DataTable(title, tuple(header), tuple(map(tuple, body)), frozenset(range(1, len(header))))
    return [_bars(name, title, rows), table if body else None, *_lines(records)]


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


def _lines(records: Sequence[ResultEntry]) -> list[ReportBlock]:
    """Traces and time lines, as they were printed."""
    return [
        DataTable(record.text("unit"), ("",), tuple((str(line.value),) for line in record.each("lines")))
        for record in records
        if record.each("lines")
    ]
