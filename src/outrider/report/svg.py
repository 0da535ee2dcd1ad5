"""Charts as SVG, by hand: no library, no script, colours from a style sheet that follows light and dark.

Every series has a colour and a shape of its own, and every mark says its numbers to a pointer.
"""

from __future__ import annotations

from html import escape

from outrider.report import svg_bars, svg_lines, svg_time
from outrider.report.charts import Chart, LineChart, TimeLines
from outrider.report.style import CHART, COLOURS
from outrider.report.svg_parts import WIDTH, ChartDrawing, text


def inline(chart: Chart, name: str) -> str:
    """For a page that has the style sheet and prints the title itself; ``name`` is unique in the page."""
    return _document(_drawn(chart), chart, f'class="chart" aria-labelledby="{name}-t {name}-d"', name)


def standalone(chart: Chart) -> str:
    """A file of its own, with its title and its colours."""
    drawing = ChartDrawing()
    drawing.add(text(0, 18, chart.title, "title"))
    drawing.skip(30)
    body = _drawn(chart, drawing)
    style = f"<style>{COLOURS}{CHART} .chart {{ background: var(--panel); }}</style>"
    attributes = f'xmlns="http://www.w3.org/2000/svg" class="chart" width="{WIDTH + 32}" aria-labelledby="t d"'
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _document(body, chart, attributes, "", style, 16) + "\n"


def described(chart: Chart) -> str:
    """What a screen reader hears before it comes to the table."""
    if isinstance(chart, TimeLines):
        return f"time in {chart.unit}: {'; '.join(line.label for line in chart.lines)}. {chart.note}".strip()
    names = [series.label for series in chart.series] if isinstance(chart, LineChart) else list(chart.series)
    axes = f"{chart.y_label} over {chart.x_label}" if isinstance(chart, LineChart) else chart.value_label
    return f"{axes}: {'; '.join(names)}. {chart.note}".strip()


def _drawn(chart: Chart, drawing: ChartDrawing | None = None) -> ChartDrawing:
    found = ChartDrawing() if drawing is None else drawing
    if isinstance(chart, LineChart):
        svg_lines.draw(chart, found)
    elif isinstance(chart, TimeLines):
        svg_time.draw(chart, found)
    else:
        svg_bars.draw(chart, found)
    return found


def _document(drawing: ChartDrawing, chart: Chart, attributes: str, name: str, style: str = "", margin: int = 0) -> str:
    before = f"{name}-" if name else ""
    box = f"{-margin} {-margin} {WIDTH + 2 * margin} {drawing.height + 2 * margin:g}"
    return (
        f'<svg {attributes} role="img" viewBox="{box}">'
        f'<title id="{before}t">{escape(chart.title)}</title><desc id="{before}d">{escape(described(chart))}</desc>'
        f"{style}{''.join(drawing.parts)}</svg>"
    )
