"""The papers' figures as charts: the formulas' curves, and what was measured beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.report import theory
from outrider.report.charts import Chart, LineChart, Mark, Series
from outrider.report.panels import Figure, Panel
from outrider.report.result_entry import ResultEntry

CURVES: dict[str, Callable[[], Figure]] = {
    "figure2": theory.expected_tokens, "figure3": theory.optimal_gamma, "figure4": theory.speed_and_operations,
}  # fmt: skip
AGAINST_K = (  # Chen et al.: column, label of the axis, column of the spread
    ("ms for 128 tokens", "ms for 128 tokens", "deviation"),
    ("tokens kept over K + 1", "tokens of a run over K + 1", None),
    ("ms of a loop", "ms of a run with its guesses", None),
)


def charts(name: str, rows: Sequence[ResultEntry]) -> list[Chart]:
    """Those of an experiment; most have none."""
    if name in CURVES:
        return [_curves(panel, f"{name}-{place}") for place, panel in enumerate(CURVES[name]().panels, 1)]
    if name == "chen-figure1":
        return [found for place, column in enumerate(AGAINST_K, 1) if (found := _against_k(rows, place, *column))]
    return []


def _curves(panel: Panel, name: str) -> LineChart:
    """What leaves the limits of a panel is left out."""
    low, high = panel.y_limits
    series = tuple(
        Series(line.label, tuple(Mark(x, y) for x, y in zip(line.xs, line.ys, strict=True) if low <= y <= high))
        for line in panel.curves
    )
    return LineChart(name, panel.title, panel.x_label, panel.y_label, series)


def _against_k(
    rows: Sequence[ResultEntry], place: int, column: str, label: str, spread: str | None
) -> LineChart | None:
    known = [row for row in rows if row.at("about").has("K") and row.at("ours").has(column)]
    series = []
    for task in dict.fromkeys(row.at("about").text("task") for row in known):
        marks = []
        for row in known:
            if row.at("about").text("task") == task:
                x, y = row.at("about").number("K"), row.at("ours").number(column)
                off = row.at("ours").number(spread) if spread else None
                marks.append(Mark(x, y) if off is None else Mark(x, y, y - off, y + off))
        series.append(Series(task, tuple(marks)))
    if not series:
        return None
    note = "Bars: a standard deviation over texts." if spread else ""
    return LineChart(f"chen-figure1-{place}", label, "guesses per run K", label, tuple(series), note)
