"""Curves in a terminal: braille dots, eight to a character, with labels where the curves leave the picture."""

from __future__ import annotations

import math
from itertools import pairwise

from rich.text import Text

from outrider.report.panels import Curve, Panel

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bits of a braille cell, row by row
_EMPTY = 0x2800
_COLOURS = ("blue", "cyan", "green", "yellow", "magenta", "white")
YOURS = "bold red"


class Canvas:
    """Characters with a style each; (0, 0) is the lower left dot. Later dots take over a cell's style."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.bits = [[0] * width for _ in range(height)]
        self.styles = [[""] * width for _ in range(height)]

    def dot(self, x: int, y: int, style: str) -> None:
        """Set a dot; outside the canvas it is cut off."""
        if 0 <= x < 2 * self.width and 0 <= y < 4 * self.height:
            row, column = self.height - 1 - y // 4, x // 2
            self.bits[row][column] |= _DOTS[3 - y % 4][x % 2]
            self.styles[row][column] = style

    def line(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for i in range(steps + 1):
            x, y = (round(a + (b - a) * i / steps) for a, b in zip(start, end, strict=True))
            self.dot(x, y, style)

    def row(self, index: int) -> Text:
        text = Text()
        for bits, style in zip(self.bits[index], self.styles[index], strict=True):
            text.append(chr(_EMPTY + bits) if bits else " ", style)
        return text


def plot(panel: Panel, width: int = 56, height: int = 16) -> Text:
    """A panel as text: title, axes with numbers, curves, and their names at the right."""
    canvas = Canvas(width, height)
    ends = []
    for number, line in enumerate(panel.curves):
        style = YOURS if line.yours else _COLOURS[number % len(_COLOURS)]
        ends.append((*_draw(canvas, panel, line, style), line.ys[-1], Text(line.label, style)))
    _mark(canvas, panel)
    names = _names(ends, height)
    low, high = panel.y_limits
    lines = [Text(f"{panel.title}  ", "bold") + Text(f"({panel.y_label} over {panel.x_label})", "dim")]
    for index in range(height):
        value = low + (high - low) * (height - 1 - index) / (height - 1)
        axis = f"{value:5.4g} ┤" if index % 3 == 0 else "      │"
        lines.append(Text(axis, "dim") + canvas.row(index) + Text(" ") + names.get(index, Text()))
    left, middle, right = (f"{panel.x_limits[0] + (panel.x_limits[1] - panel.x_limits[0]) * s:g}" for s in (0, 0.5, 1))
    lines.append(Text("      └" + "─" * width, "dim"))
    lines.append(Text("       " + left + middle.center(width - len(left) - len(right)) + right, "dim"))
    return Text("\n").join(lines)


def bar(value: float, largest: float, width: int = 12) -> str:
    """A bar in eighths of a character."""
    if not (math.isfinite(value) and largest > 0):
        return ""
    eighths = max(0, round(8 * width * value / largest))
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def _draw(canvas: Canvas, panel: Panel, line: Curve, style: str) -> tuple[int, int]:
    """Draw a curve; where its name belongs: the last point, or the first above the picture after the last within."""
    points = [_dots(canvas, panel, point) for point in zip(line.xs, line.ys, strict=True)]
    for start, end in pairwise(points):
        canvas.line(start, end, style)
    top = 4 * canvas.height
    inside = [i for i, (_, y) in enumerate(points) if y < top]
    x, y = points[min(inside[-1] + 1, len(points) - 1)] if inside else points[0]
    return x, min(y, top)


def _dots(canvas: Canvas, panel: Panel, point: tuple[float, float]) -> tuple[int, int]:
    limits, sizes = (panel.x_limits, panel.y_limits), (2 * canvas.width - 1, 4 * canvas.height - 1)
    shares = ((v - low) / (high - low) for v, (low, high) in zip(point, limits, strict=True))
    x, y = (round(max(-1.0, min(2.0, s)) * size) for s, size in zip(shares, sizes, strict=True))
    return x, y


def _mark(canvas: Canvas, panel: Panel) -> None:
    """The reader's point as a full cell."""
    if panel.mark is None:
        return
    x, y = _dots(canvas, panel, panel.mark)
    for dx in range(2):
        for dy in range(4):
            canvas.dot(x // 2 * 2 + dx, y // 4 * 4 + dy, f"{YOURS} reverse")


def _names(ends: list[tuple[int, int, float, Text]], height: int) -> dict[int, Text]:
    """A row for every name, near its curve's end (x, y, value); what left the picture first stands highest."""
    ranked = sorted(ends, key=lambda end: (-end[1], end[0], -end[2]))
    rows: list[int] = []
    for _, y, *_ in ranked:
        rows.append(max(height - 1 - min(y // 4, height - 1), rows[-1] + 1 if rows else 0))
    for i in range(len(rows) - 1, -1, -1):  # what ran over the bottom pushes the others up
        rows[i] = min(rows[i], (rows[i + 1] if i + 1 < len(rows) else height) - 1)
    return {row: name for row, (*_, name) in zip(rows, ranked, strict=True)}
