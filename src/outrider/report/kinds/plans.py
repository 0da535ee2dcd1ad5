"""``outrider plan --out``: predicted speed-ups by gamma with what was measured of them, and what they follow from."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.report.charts import Chapter, DataTable, Headline, LineChart, Mark, Series, section, sections
from outrider.report.kinds.stats import MOST_SERIES, conditions
from outrider.report.result_entry import ResultEntry
from outrider.report.values import figure

FOLLOWS = "Theorem 3.8 with acceptance by guess number and costs as measured. Points: the same cells, run."


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    whole = records[0]
    batches = sorted({cell.count("batch") for cell in whole.each("cells")})
    found = (
        section("Predicted and measured", [_speedups(whole, batch) for batch in batches], FOLLOWS),
        section("Predictions that were checked", [_checks(whole)]),
        section("Acceptance", [_acceptance(whole)], "Of guess 1, 2, 3 ..., if those before it were kept."),
        section("What a run costs", [_costs(whole)], "In units of a plain step of the same batch, by width."),
    )
    missing = ["All prompts: the run was interrupted."] if whole.flag("interrupted") else []
    missing.append("Speed with a gamma that adapts: `outrider measure --gamma auto --out FILE` measures it.")
    headlines = (Headline("Recommended", whole.text("sentence")),)
    title = f"Plan for {whole.text('target')}"
    return Chapter(title, headlines, conditions(whole, "conditions"), sections(*found), tuple(missing))


def _speedups(whole: ResultEntry, batch: int) -> LineChart | None:
    series: list[Series] = []
    for draft in dict.fromkeys(cell.text("draft") for cell in whole.each("cells")):
        cells = [c for c in whole.each("cells") if c.text("draft") == draft and c.count("batch") == batch]
        marks = tuple(Mark(c.number("gamma"), c.number("speedup"), *c.interval("interval")) for c in cells)
        checks = [c for c in whole.each("checks") if c.text("draft") == draft and c.count("batch") == batch]
        if not marks or len(series) >= MOST_SERIES:
            continue
        colour = len(series)
        series.append(Series(f"{draft}, predicted", marks, "line", colour))
        if checks:
            points = tuple(Mark(c.number("gamma"), c.number("measured"), *c.interval("interval")) for c in checks)
            series.append(Series(f"{draft}, measured", points, "points", colour))
    if not series:
        return None
    title = f"Speed-up by gamma, {batch} request{'s' if batch > 1 else ''} at a time"
    return LineChart(
        f"plan-{batch}", title, "guesses per run γ", "times as fast as plain", tuple(series),
        reference=(1.0, "plain decoding"),
    )  # fmt: skip


def _checks(whole: ResultEntry) -> DataTable | None:
    rows = tuple(
        (
            c.text("draft"), c.text("gamma"), c.text("batch"),
            figure(c.known("predicted")), figure(c.known("measured")),
            f"{c.number('error_percent'):+.0f} %" if c.has("error_percent") else "-",
            f"{c.count('same_text')} of {c.count('texts')}",
        )
        for c in whole.each("checks")
    )  # fmt: skip
    columns = ("draft", "γ", "requests", "predicted", "measured", "error", "same text")
    return DataTable("Predicted beside measured", columns, rows) if rows else None


def _acceptance(whole: ResultEntry) -> DataTable | None:
    rows = tuple(
        (
            a.text("draft"), a.text("task"), a.text("prompts"), figure(a.known("alpha")),
            figure(a.known("tokens_per_run")), " ".join(f"{chance:.2f}" for chance in a.numbers("by_number")),
        )
        for a in whole.each("acceptance")
    )  # fmt: skip
    columns = ("draft", "task", "prompts", "α", "per run", "by number")
    return DataTable("Acceptance", columns, rows, frozenset({1, 5})) if rows else None


def _costs(whole: ResultEntry) -> DataTable | None:
    costs = whole.each("costs")
    widths = sorted({int(width) for cost in costs for width in cost.at("widths").mapping()})
    rows = tuple(
        (
            c.text("batch"), figure(c.number("plain_step_ms")),
            *(figure(c.at("widths").known(str(width))) for width in widths),
        )
        for c in costs
    )  # fmt: skip
    columns = ("requests", "plain step, ms", *(f"width {width}" for width in widths))
    return DataTable("Cost of a run by width", columns, rows) if rows else None
