"""Line charts as SVG: axes with round numbers, formulas behind, marks with intervals before them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from outrider.report.charts import LineChart, Mark, Series
from outrider.report.svg_parts import LETTER, WIDTH, ChartDrawing, LegendEntry, legend, line, polyline, shape, text
from outrider.report.values import tick_label, ticks, with_interval

PLOT = 210  # height of the plot
RIGHT = 12


@dataclass(frozen=True)
class Frame:
    """From values to pixels."""

    chart: LineChart
    x_ticks: list[float]
    y_ticks: list[float]
    left: float
    top: float

    def x(self, value: float) -> float:
        scale: Callable[[float], float] = math.log if self.chart.log_x else float
        low, high = scale(self.x_ticks[0]), scale(self.x_ticks[-1])
        share = (scale(value) - low) / (high - low) if high > low else 0.5
        return self.left + 8 + share * (WIDTH - RIGHT - self.left - 16)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        share = (value - low) / (high - low)
        return self.top + PLOT * (1 - min(1.0, max(0.0, share)))


def draw(chart: LineChart, drawing: ChartDrawing) -> None:
    colours = [place if series.colour is None else series.colour for place, series in enumerate(chart.series)]
    entries = [LegendEntry(s.label, c, s.form) for s, c in zip(chart.series, colours, strict=True)]
    if len(entries) > 1:
        legend(drawing, entries)
    drawing.add(text(0, drawing.height + 12, chart.y_label, "axis-name"))
    drawing.skip(24)
    y_ticks = _y_ticks(chart)
    left = LETTER * max(len(tick_label(t)) for t in y_ticks) + 10
    frame = Frame(chart, _x_ticks(chart), y_ticks, left, drawing.height)
    _axes(frame, drawing)
    pairs = sorted(zip(chart.series, colours, strict=True), key=lambda pair: pair[0].form != "curve")
    measured = [series for series in chart.series if series.form != "curve"]
    for series, colour in pairs:
        shift = 0.0
        if series.form != "curve" and any(mark.low is not None for mark in series.marks):  # intervals side by side
            shift = 3.0 * (measured.index(series) - (len(measured) - 1) / 2)
        _series(frame, series, colour, shift, drawing)
    drawing.height = frame.top + PLOT + 40


def _y_ticks(chart: LineChart) -> list[float]:
    """From 0, or from lower where something is; shares go up to 1."""
    values = [v for s in chart.series for m in s.marks for v in (m.y, m.low, m.high) if v is not None]
    values += [] if chart.reference is None else [chart.reference[0]]
    return ticks(min(0.0, *values), max(values) or 1.0)


def _x_ticks(chart: LineChart) -> list[float]:
    xs = sorted({mark.x for series in chart.series for mark in series.marks})
    if chart.log_x and xs[0] > 0:
        return xs if len(xs) > 1 else [xs[0] / 2, *xs, xs[0] * 2]
    if any(x != int(x) for x in xs) and xs[-1] - xs[0] < 4:  # shares
        return ticks(xs[0], xs[-1], 7)
    first = math.floor(xs[0])
    if xs[-1] - first <= 12:  # guesses: every whole number
        return [float(n) for n in range(first, max(math.ceil(xs[-1]), first + 1) + 1)]
    return ticks(0.0 if 0 <= xs[0] < 0.5 * xs[-1] else xs[0], xs[-1], 7)


def _axes(frame: Frame, drawing: ChartDrawing) -> None:
    bottom, end = frame.top + PLOT, WIDTH - RIGHT
    for value in frame.y_ticks:
        y = frame.y(value)
        drawing.add(line((frame.left, y), (end, y), "grid"))
        drawing.add(text(frame.left - 6, y + 4, tick_label(value), "tick", "end"))
    free = -math.inf
    for value in frame.x_ticks:
        x, label = frame.x(value), tick_label(value)
        drawing.add(line((x, bottom), (x, bottom + 4), "axis"))
        half = LETTER * len(label) / 2
        if x - half > free:
            drawing.add(text(min(x, WIDTH - 1.2 * half), bottom + 17, label, "tick", "middle"))
            free = x + half + 6
    drawing.add(line((frame.left, bottom), (end, bottom), "axis"))
    drawing.add(text((frame.left + end) / 2, bottom + 35, frame.chart.x_label, "axis-name", "middle"))
    if frame.chart.reference is not None:
        level, name = frame.chart.reference
        y = frame.y(level)
        drawing.add(line((frame.left, y), (end, y), "reference"), text(end, y - 5, name, "reference-name", "end"))


def _series(frame: Frame, series: Series, colour: int, shift: float, drawing: ChartDrawing) -> None:
    places = [(frame.x(mark.x) + shift, frame.y(mark.y)) for mark in series.marks]
    if series.form == "curve":
        drawing.add(polyline(places, f"curve c{colour % 6}"))
        return
    if series.form == "line" and len(places) > 1:
        drawing.add(polyline(places, f"line c{colour % 6} d{colour // 6 % 3}"))
    for mark, (x, y) in zip(series.marks, places, strict=True):
        if mark.low is not None and mark.high is not None:
            drawing.add(*_interval(frame, mark, x, colour))
        says = (
            f"{series.label}, {frame.chart.x_label} {tick_label(mark.x)}: {with_interval(mark.y, mark.low, mark.high)}"
        )
        drawing.add(shape(x, y, colour, says))


def _interval(frame: Frame, mark: Mark, x: float, colour: int) -> list[str]:
    low, high = frame.y(mark.low or 0.0), frame.y(mark.high or 0.0)
    kind = f"interval c{colour % 6}"
    caps = [line((x - 4, y), (x + 4, y), kind) for y in (low, high)]
    return [line((x, low), (x, high), kind), *caps]
