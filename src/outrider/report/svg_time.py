"""Time lines as SVG: a stretch for every part, in the colour of its kind, ways below each other on one scale."""

from __future__ import annotations

from outrider.report.charts import TimeLines
from outrider.report.svg_parts import WIDTH, ChartDrawing, LegendEntry, box, legend, line, text
from outrider.report.values import figure, tick_label, ticks

THICK = 18.0
GAP = 0.8  # between two parts, where there is room for it


def draw(chart: TimeLines, drawing: ChartDrawing) -> None:
    kinds = {kind: place for place, kind in enumerate(chart.letters)}
    used = {part.kind for one in chart.lines for part in one.parts}
    legend(drawing, [LegendEntry(kind, place, "box") for kind, place in kinds.items() if kind in used])
    marks = ticks(0.0, max((one.length for one in chart.lines), default=0.0), 6)
    scale = (WIDTH - 8) / marks[-1]
    top = drawing.height + 4
    drawing.height = top
    parts: list[str] = []
    for one in chart.lines:
        runs = sum(part.kind == chart.ends for part in one.parts)
        words = f"{one.label}: {figure(one.length)} {chart.unit}, {runs} runs of the target"
        parts.append(text(5, drawing.height + 12, words, "name"))
        drawing.skip(17)
        x = 0.0
        for part in one.parts:
            wide = part.length * scale
            says = f"{one.label}, {part.kind}: {figure(part.length)} {chart.unit}"
            size = (wide - GAP if wide > 2 * GAP else wide, THICK)
            parts.append(box(x, drawing.height, size, f"bar c{kinds[part.kind]}", says))
            x += wide
        drawing.skip(THICK + 8)
    bottom = drawing.height + 2
    for value in marks:
        drawing.add(line((value * scale, top - 2), (value * scale, bottom), "grid"))
        anchor = "start" if value == 0 else "middle" if value < marks[-1] else "end"
        drawing.add(text(value * scale, bottom + 16, tick_label(value), "tick", anchor))
    drawing.add(*parts)
    drawing.add(line((0, top - 2), (0, bottom), "axis"), text(0, bottom + 34, chart.unit, "axis-name"))
    drawing.height = bottom + 40
