"""Pieces that all charts are drawn from: texts, marks of a shape for every series, intervals, a legend."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from outrider.report.values import shorten

WIDTH = 440
LETTER = 6.4  # width of a letter at 12 px, on average
LINE = 18
COLOURS = 6


@dataclass
class ChartDrawing:
    """Elements so far, and how far down the paper is used."""

    parts: list[str] = field(default_factory=list)
    height: float = 0.0

    def add(self, *elements: str) -> None:
        self.parts.extend(elements)

    def skip(self, pixels: float) -> None:
        self.height += pixels


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{_class(kind)}{place}>{escape(words)}</text>'


def line(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    return f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"{_class(kind)}/>'


def polyline(points: list[tuple[float, float]], kind: str) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}"{_class(kind)}/>'


def box(x: float, y: float, size: tuple[float, float], kind: str, says: str = "") -> str:
    width, height = max(0.0, size[0]), size[1]
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5"{_class(kind)}>'
        f"{_says(says)}</rect>"
    )


def shape(x: float, y: float, colour: int, says: str = "", size: float = 4.0) -> str:
    """Circle, square, triangle, diamond, triangle on its head, flat box: told apart without colour."""
    s = size * 1.15
    paths = (
        None,
        [(-size * 0.9, -size * 0.9), (size * 0.9, -size * 0.9), (size * 0.9, size * 0.9), (-size * 0.9, size * 0.9)],
        [(0, -s), (s, s * 0.85), (-s, s * 0.85)],
        [(0, -s * 1.15), (s * 1.15, 0), (0, s * 1.15), (-s * 1.15, 0)],
        [(0, s), (s, -s * 0.85), (-s, -s * 0.85)],
        [(-s * 1.2, -size * 0.6), (s * 1.2, -size * 0.6), (s * 1.2, size * 0.6), (-s * 1.2, size * 0.6)],
    )
    path, kind = paths[colour % COLOURS], f"mark c{colour % COLOURS}"
    if path is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"{_class(kind)}>{_says(says)}</circle>'
    places = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in path)
    return f'<polygon points="{places}"{_class(kind)}>{_says(says)}</polygon>'


@dataclass(frozen=True)
class LegendEntry:
    label: str
    colour: int
    form: str  # line, points, curve or box


def legend(drawing: ChartDrawing, entries: list[LegendEntry]) -> None:
    """As many lines as the names need."""
    x, y = 0.0, drawing.height + 12
    for entry in entries:
        label = shorten(entry.label, int((WIDTH - 30) / LETTER))
        needed = 26 + LETTER * len(label) + 16
        if x and x + needed - 16 > WIDTH:
            x, y = 0.0, y + LINE
        drawing.add(_sign(x, y - 4, entry), text(x + 26, y, label, "name"))
        x += needed
    if entries:
        drawing.height = y + 10


def _sign(x: float, y: float, entry: LegendEntry) -> str:
    colour = f"c{entry.colour % COLOURS}"
    if entry.form == "box":
        return box(x + 4, y - 5, (14, 10), f"bar {colour}")
    if entry.form == "curve":
        return line((x, y), (x + 21, y), f"curve {colour}")
    stroke = line((x, y), (x + 21, y), f"line {colour}") if entry.form == "line" else ""
    return stroke + shape(x + 10.5, y, entry.colour)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _says(says: str) -> str:
    return f"<title>{escape(says)}</title>" if says else ""
