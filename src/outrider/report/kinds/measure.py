"""``outrider measure --out``: speed-up against gamma beside the theory, acceptance and time, by draft and task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider import theory
from outrider.report.charts import (
    Bar,
    BarChart,
    BarRow,
    Chapter,
    DataTable,
    Headline,
    LineChart,
    Mark,
    ReportSection,
    Series,
    section,
    sections,
)
from outrider.report.kinds import stats
from outrider.report.kinds.stats import NamedStats
from outrider.report.result_entry import ResultEntry
from outrider.report.values import figure, with_interval

ALL = "all"
ELSEWHERE = (
    "A coloured trace of a text: `outrider generate --trace FILE` writes one.",
    "Other engines: `outrider bench cpu --out FILE` compares with them.",
    "Throughput under load: `outrider bench serve --loads 1,2,4,8 --out FILE` measures it.",
)


@dataclass(frozen=True)
class MeasuredWay:
    """A row of the file: a draft and gamma at one temperature on one task."""

    draft: str
    gamma: str
    temperature: float
    task: str
    entry: ResultEntry

    @staticmethod
    def of(entry: ResultEntry) -> MeasuredWay:
        names = entry.text("draft"), entry.text("gamma"), entry.number("temperature"), entry.text("task")
        return MeasuredWay(*names, entry)

    @property
    def stats(self) -> ResultEntry:
        return self.entry.at("stats")

    @property
    def speedup(self) -> float:
        return self.entry.known("speedup") or 0.0

    @property
    def guesses(self) -> float:
        """Per run: gamma itself, or its mean where it was adapted."""
        if self.gamma.isdecimal():
            return int(self.gamma)
        runs = self.stats.number("runs")
        return self.stats.number("drafted") / runs if runs else 0.0

    @property
    def label(self) -> str:
        return f"{self.draft}, γ {self.gamma}"


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    whole = records[0]
    rows = [MeasuredWay.of(entry) for entry in whole.each("rows")]
    overall = [row for row in rows if row.task == ALL]
    temperatures = list(dict.fromkeys(row.temperature for row in rows))
    found: list[ReportSection | None] = []
    for t in temperatures:
        here, title = [row for row in overall if row.temperature == t], f"temperature {t:g}"
        best = _best_by_draft(here)
        found.append(section(f"Speed-up, {title}", [_by_gamma(whole, here, t), _by_task(rows, best, "speedup")]))
        found.append(section(f"Acceptance, {title}", [_by_task(rows, best, "alpha"), _depth(here, t)]))
        found.append(section(f"Steps, {title}", [_phases(whole, here, t), _lengths(best, t)]))
    found.append(section("Every row", [_table(rows)], EXPLAINED))
    return Chapter(
        f"{whole.text('target')}: speculative against plain decoding",
        _headlines(overall),
        (("command", whole.text("command")), *stats.conditions(whole, "conditions")),
        sections(*found),
        (*_missing(whole, overall), *ELSEWHERE),
    )


EXPLAINED = (
    "α: mean overlap of p and q over the guesses whose fate was decided. c: time of a guess over time of a plain step. "
    "Speed-up: against plain decoding with the same shapes, totals over totals. Intervals: 95 %, over prompts."
)


def _headlines(overall: Sequence[MeasuredWay]) -> tuple[Headline, ...]:
    if not overall:
        return ()
    best = max(overall, key=lambda row: row.speedup)
    low, high = best.entry.interval("speedup_interval")
    interval = "" if low is None else f"; 95 %: {figure(low)} to {figure(high)}"
    where = f"{best.label}, temperature {best.temperature:g}{interval}"
    same, of = (sum(row.entry.count(key) for row in overall) for key in ("identical", "prompts"))
    return (
        Headline("Best speed-up", f"{figure(best.speedup)}×", where),
        Headline("Acceptance α", figure(best.stats.known("alpha")), "mean overlap of p and q, of the best"),
        Headline("Tokens per target run", figure(best.stats.known("tokens_per_run")), "of the best; plain has 1"),
        Headline("Same text as plain", f"{same:,} of {of:,}", "texts, all temperatures, drafts and γ"),
    )  # fmt: skip


def _best_by_draft(rows: Sequence[MeasuredWay]) -> list[MeasuredWay]:
    """Of every draft the gamma that was fastest."""
    found: dict[str, MeasuredWay] = {}
    for row in rows:
        if row.draft not in found or row.speedup > found[row.draft].speedup:
            found[row.draft] = row
    return list(found.values())


def _by_gamma(whole: ResultEntry, rows: Sequence[MeasuredWay], temperature: float) -> LineChart | None:
    """Measured points before the theory's curve for the same acceptance and costs."""
    measured, curves = [], []
    for place, draft in enumerate(dict.fromkeys(row.draft for row in rows)):
        mine = [row for row in rows if row.draft == draft and row.entry.has("speedup")]
        marks = tuple(Mark(row.guesses, row.speedup, *row.entry.interval("speedup_interval")) for row in mine)
        if marks:
            adapted = all(not row.gamma.isdecimal() for row in mine)
            label = f"{draft}, γ auto at its mean" if adapted else draft
            measured.append(Series(label, tuple(sorted(marks, key=lambda mark: mark.x)), "points", place))
        curve = _curve(whole, draft, mine, max((row.guesses for row in rows), default=0), place)
        curves += [] if curve is None else [curve]
    if not measured:
        return None
    note = (
        "Points: measured, with 95 % intervals; an adapted γ stands at its mean. Curves: Theorem 3.8 with the α and c "
        f"of these rows{_widths_note(whole)}."
    )
    series = (*measured, *curves)
    title = f"Speed-up against γ, temperature {temperature:g}"
    return LineChart(
        f"speedup-t{temperature:g}", title, "guesses per run γ", "times as fast as plain decoding", series, note,
        reference=(1.0, "plain decoding"),
    )  # fmt: skip


def _curve(whole: ResultEntry, draft: str, rows: Sequence[MeasuredWay], most: float, place: int) -> Series | None:
    """What the formulas say for the acceptance and the cost of these rows, weighted by their guesses."""
    known = [row for row in rows if row.stats.has("alpha") and row.entry.has("cost") and row.stats.number("examined")]
    if not known:
        return None
    weights = [row.stats.number("examined") for row in known]
    alpha, c = (
        sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
        for values in ([row.stats.number("alpha") for row in known], [row.entry.number("cost") for row in known])
    )
    last = max(8, round(most) + 2)
    widths = _width_costs(whole)
    costs = theory.Costs(draft=c)
    if widths:
        last = min(last, max(widths) - 1)
        costs = theory.Costs(theory.interpolated(widths), c)
    return stats.expected_curve(f"theory for {draft}: α {figure(alpha)}, c {figure(c)}", alpha, costs, last, place)


def _width_costs(whole: ResultEntry) -> dict[int, float]:
    """Cost of a run by its width where runs are as narrow as they need; else every run has the same shape."""
    found = whole.at("conditions")
    if not (found.has("width_costs", "any_width") and found.flag("any_width")):
        return {}
    costs = found.at("width_costs")
    widths = {int(width): costs.number(width) for width in costs.mapping() if width.isdecimal()}
    return widths if 1 in widths and max(widths) > 1 else {}


def _widths_note(whole: ResultEntry) -> str:
    return ", and the cost of a run by its width that was measured here" if _width_costs(whole) else ""


def _by_task(rows: Sequence[MeasuredWay], best: Sequence[MeasuredWay], what: str) -> BarChart | None:
    """The best gamma of each draft, task by task."""
    best = best[: stats.MOST_SERIES]
    if not best:
        return None
    alpha, t = what == "alpha", best[0].temperature
    tasks = list(dict.fromkeys(row.task for row in rows if row.temperature == t))
    found = {(row.label, row.task): row for row in rows if row.temperature == t}
    bars = [BarRow(task, tuple(_bar(found.get((way.label, task)), alpha) for way in best)) for task in tasks]
    title = f"{'Acceptance' if alpha else 'Speed-up'} by task, temperature {t:g}"
    return BarChart(
        f"{'acceptance' if alpha else 'speedup'}-by-task-t{t:g}", title,
        "acceptance α" if alpha else "times as fast as plain decoding", tuple(way.label for way in best), tuple(bars),
        "Lines: 95 % intervals over prompts.", reference=None if alpha else (1.0, "plain"),
    )  # fmt: skip


def _bar(row: MeasuredWay | None, alpha: bool) -> Bar | None:
    value = None if row is None else row.stats.known("alpha") if alpha else row.entry.known("speedup")
    if row is None or value is None:
        return None
    return Bar(value, *row.entry.interval("alpha_interval" if alpha else "speedup_interval"))


def _depth(rows: Sequence[MeasuredWay], t: float) -> LineChart | None:
    """Of every draft the row with the most guesses in a run."""
    deepest: dict[str, MeasuredWay] = {}
    for row in rows:
        if row.draft not in deepest or row.guesses > deepest[row.draft].guesses:
            deepest[row.draft] = row
    named = [NamedStats(row.label, row.stats) for row in deepest.values()]
    return stats.by_depth(named, f"Acceptance by depth, temperature {t:g}", f"depth-t{t:g}")


def _lengths(best: Sequence[MeasuredWay], t: float) -> BarChart | None:
    named = [NamedStats(row.label, row.stats) for row in best]
    return stats.run_lengths(named, f"Tokens per run, temperature {t:g}", f"run-lengths-t{t:g}")


def _phases(whole: ResultEntry, rows: Sequence[MeasuredWay], t: float) -> BarChart | None:
    if _launches(whole, rows):
        return None
    chart = stats.phases([NamedStats(row.label, row.stats) for row in rows], f"Time of a step, temperature {t:g}")
    return None if chart is None else BarChart(**{**vars(chart), "name": f"phases-t{t:g}"})


def _launches(whole: ResultEntry, rows: Sequence[MeasuredWay]) -> bool:
    """On a GPU a clock on the host sees work being launched, not done."""
    return whole.at("conditions").has("cuda") or any(row.stats.value.get("graphs") for row in rows)


def _missing(whole: ResultEntry, rows: Sequence[MeasuredWay]) -> tuple[str, ...]:
    found = []
    if not any(row.stats.has("depths") for row in rows):
        found.append("Acceptance by depth and tokens per run: this file was written before they were; measure again.")
    if _launches(whole, rows):
        found.append("Where the time of a step goes: on a GPU the clock sees launches; see `outrider bench gpu`.")
    if whole.value.get("interrupted"):
        done, wanted = whole.count("prompts_done"), whole.count("prompts_wanted")
        found.append(f"All of its prompts: the run was interrupted after {done} of {wanted}.")
    return tuple(found)


def _table(rows: Sequence[MeasuredWay]) -> DataTable | None:
    columns = (
        "draft", "γ", "t", "task", "prompts", "α", "tokens per run", "c", "plain tokens/s", "tokens/s", "speed-up",
        "same text",
    )  # fmt: skip
    lines = tuple(
        (
            row.draft, row.gamma, f"{row.temperature:g}", row.task, str(row.entry.count("prompts")),
            with_interval(row.stats.known("alpha"), *row.entry.interval("alpha_interval")),
            figure(row.stats.known("tokens_per_run")), figure(row.entry.known("cost")),
            figure(row.entry.known("plain_tokens_per_second")), figure(row.entry.known("tokens_per_second")),
            with_interval(row.entry.known("speedup"), *row.entry.interval("speedup_interval")),
            f"{row.entry.count('identical')} of {row.entry.count('prompts')}",
        )
        for row in rows
    )  # fmt: skip
    return DataTable("Rows", columns, lines, frozenset({3})) if lines else None
