"""Bar charts as SVG: names above their bars, so that they are read on a phone, too."""

from __future__ import annotations

from outrider.report.charts import Bar, BarChart, BarRow
from outrider.report.svg_parts import LETTER, WIDTH, ChartDrawing, LegendEntry, box, legend, line, text
from outrider.report.values import figure, shorten, tick_label, ticks, with_interval

THICK, THIN = 18.0, 13.0


def draw(chart: BarChart, drawing: ChartDrawing) -> None:
    if len(chart.series) > 1:
        legend(drawing, [LegendEntry(name, place, "box") for place, name in enumerate(chart.series)])
    marks = ticks(0.0, _largest(chart), 5)
    shown = [figure(bar.value) for row in chart.rows for bar in row.bars if bar is not None]
    room = LETTER * max(map(len, shown), default=0) + 10 if not chart.stacked else 48
    scale = (WIDTH - room) / marks[-1]
    top = drawing.height + (20 if chart.reference is not None else 6)
    drawing.height = top
    rows = [part for row in chart.rows for part in _row(chart, row, scale, drawing)]
    bottom = drawing.height + 2
    for value in marks:
        drawing.add(line((value * scale, top - 2), (value * scale, bottom), "grid"))
        anchor = "start" if value == 0 else "middle"
        drawing.add(text(value * scale, bottom + 16, tick_label(value), "tick", anchor))
    drawing.add(*rows)
    drawing.add(line((0, top - 2), (0, bottom), "axis"), text(0, bottom + 34, chart.value_label, "axis-name"))
    if chart.reference is not None:
        level, name = chart.reference
        x = level * scale
        drawing.add(line((x, top - 6), (x, bottom), "reference"))
        drawing.add(text(x, top - 9, name, "reference-name", "middle" if x > 60 else "start"))
    drawing.height = bottom + 40


def _largest(chart: BarChart) -> float:
    if chart.stacked:
        totals = [sum(bar.value for bar in row.bars if bar is not None) for row in chart.rows]
        return max(totals, default=0.0) or 1.0
    values = [
        value for row in chart.rows for bar in row.bars if bar is not None for value in (bar.value, bar.high or 0.0)
    ]
    return max([*values, chart.reference[0] if chart.reference is not None else 0.0], default=0.0) or 1.0


def _row(chart: BarChart, row: BarRow, scale: float, drawing: ChartDrawing) -> list[str]:
    parts = [text(5, drawing.height + 12, shorten(row.label, int(WIDTH / LETTER)), "name")]
    drawing.skip(17)
    if chart.stacked:
        parts += _stack(chart, row, scale, drawing.height)
        drawing.skip(THICK + 9)
        return parts
    for place, bar in enumerate(row.bars):
        if bar is None:
            parts.append(text(4, drawing.height + 10, "not measured", "tick"))
        else:
            parts += _bar(chart, row, place, bar, scale, drawing.height)
        drawing.skip(THIN + 2)
    drawing.skip(7)
    return parts


def _bar(chart: BarChart, row: BarRow, place: int, bar: Bar, scale: float, y: float) -> list[str]:
    says = f"{row.label}, {chart.series[place]}: {with_interval(bar.value, bar.low, bar.high)}"
    parts = [box(0, y, (bar.value * scale, THIN), f"bar c{place % 6}", says)]
    end = bar.value * scale
    if bar.low is not None and bar.high is not None:
        middle, (low, high) = y + THIN / 2, (bar.low * scale, bar.high * scale)
        caps = [line((x, middle - 3.5), (x, middle + 3.5), "spread") for x in (low, high)]
        parts += [line((low, middle), (high, middle), kind) for kind in ("halo", "spread")] + caps
        end = max(end, high)
    return [*parts, text(end + 6, y + 11, figure(bar.value), "value")]


def _stack(chart: BarChart, row: BarRow, scale: float, y: float) -> list[str]:
    parts, x, total = [], 0.0, sum(bar.value for bar in row.bars if bar is not None)
    for place, bar in enumerate(row.bars):
        if bar is None or bar.value <= 0:
            continue
        says = f"{row.label}, {chart.series[place]}: {figure(bar.value)} {chart.value_label}"
        parts.append(box(x, y, (bar.value * scale - 1, THICK), f"bar c{place % 6}", says))
        x += bar.value * scale
    return [*parts, text(x + 6, y + 13, "" if chart.value_label.startswith("%") else figure(total), "value")]
