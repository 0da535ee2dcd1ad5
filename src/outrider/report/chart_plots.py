"""Charts of a report as PNG files, by matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.report.charts import BarChart, Chart, LineChart, Series, TimeLines
from outrider.report.values import figure

_INK, _MUTED, _GRID = "#1c1e21", "#565c65", "#d5d9dd"
_COLOURS = ("#1d4fa8", "#a34a00", "#1a6b2f", "#7a2f95", "#00696f", "#a01f4b")
_SHAPES = "os^Dv_"
_WIDTH, _DPI = 6.4, 160


def save_png(chart: Chart, path: Path) -> None:
    # Not pyplot: it keeps global state and picks a window system.
    from matplotlib.figure import Figure as Sheet

    if isinstance(chart, LineChart):
        sheet = Sheet(figsize=(_WIDTH, 4.2), layout="constrained")
        _lines(chart, sheet.subplots())
    elif isinstance(chart, TimeLines):
        sheet = Sheet(figsize=(_WIDTH, 1.6 + 0.5 * len(chart.lines)), layout="constrained")
        _time_lines(chart, sheet.subplots())
    else:
        bars = sum(1 if chart.stacked else len(row.bars) for row in chart.rows)
        height = 1.4 + 0.24 * bars + 0.14 * len(chart.rows)
        sheet = Sheet(figsize=(_WIDTH, max(2.2, height)), layout="constrained")
        _bars(chart, sheet.subplots())
    sheet.suptitle(chart.title, fontsize=11, color=_INK, x=0.01, ha="left")
    sheet.savefig(path, dpi=_DPI)


def _lines(chart: LineChart, axes: Any) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter

    for place, series in enumerate(chart.series):
        _series(series, place if series.colour is None else series.colour, axes)
    if chart.reference is not None:
        axes.axhline(chart.reference[0], color=_MUTED, linewidth=1, linestyle=":", label=chart.reference[1])
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(sorted({m.x for s in chart.series for m in s.marks})))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        whole = all(m.x == int(m.x) for s in chart.series for m in s.marks)
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=whole))
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(color=_GRID, linewidth=0.6)
    _tidy(axes, len(chart.series) > 1)


def _series(series: Series, colour: int, axes: Any) -> None:
    xs, ys = [mark.x for mark in series.marks], [mark.y for mark in series.marks]
    shade = _COLOURS[colour % len(_COLOURS)]
    if series.form == "curve":
        axes.plot(xs, ys, color=shade, linewidth=1.5, linestyle="--", alpha=0.75, label=series.label)
        return
    how = "-" if series.form == "line" else ""
    axes.plot(xs, ys, color=shade, linestyle=how, marker=_SHAPES[colour % 6], markersize=5, label=series.label)
    for mark in series.marks:
        if mark.low is not None and mark.high is not None:
            axes.plot([mark.x, mark.x], [mark.low, mark.high], color=shade, linewidth=1.2, marker="_", markersize=6)


def _bars(chart: BarChart, axes: Any) -> None:
    labels, places, y = [], [], 0.0
    for row in chart.rows:
        first, left = y, 0.0
        for place, bar in enumerate(row.bars):
            shade = _COLOURS[place % len(_COLOURS)]
            name = chart.series[place] if row is chart.rows[0] and len(chart.series) > 1 else None
            if bar is not None:
                axes.barh(y, bar.value, 0.8, left=left, color=shade, label=name)
                if bar.low is not None and bar.high is not None:
                    axes.plot([bar.low, bar.high], [y, y], color=_INK, linewidth=1.2, marker="|", markersize=6)
                if not chart.stacked:
                    axes.text(max(bar.value, bar.high or 0.0), y, f"  {figure(bar.value)}", va="center", fontsize=8)
            if chart.stacked:
                left += 0.0 if bar is None else bar.value
            else:
                y += 1.0
        last = y if chart.stacked else y - 1
        labels.append(row.label)
        places.append((first + last) / 2)
        y = last + 1.5
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    if chart.reference is not None:
        axes.axvline(chart.reference[0], color=_MUTED, linewidth=1, linestyle=":", label=chart.reference[1])
    axes.set_xlabel(chart.value_label)
    axes.grid(color=_GRID, linewidth=0.6, axis="x")
    _tidy(axes, len(chart.series) > 1)


def _time_lines(chart: TimeLines, axes: Any) -> None:
    shades = {kind: _COLOURS[place % len(_COLOURS)] for place, kind in enumerate(chart.letters)}
    named = set[str]()
    for y, one in enumerate(chart.lines):
        left = 0.0
        for part in one.parts:
            label = None if part.kind in named else part.kind
            axes.barh(
                y, part.length, 0.6, left=left, color=shades[part.kind], edgecolor="white", linewidth=0.4, label=label
            )
            named.add(part.kind)
            left += part.length
    axes.set_yticks(range(len(chart.lines)), [one.label for one in chart.lines], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(chart.unit)
    axes.grid(color=_GRID, linewidth=0.6, axis="x")
    _tidy(axes, True)


def _tidy(axes: Any, named: bool) -> None:
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if named:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
