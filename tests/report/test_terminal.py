"""Pictures in a terminal show what they should: curves where their values are, names beside them, nothing lost."""

from __future__ import annotations

from outrider.report.panels import Panel, curve
from outrider.report.terminal import Canvas, bar, plot


def panel(*curves: object, mark: tuple[float, float] | None = None) -> Panel:
    return Panel("Title", "x", "y", tuple(curves), (0, 1), (0, 10), mark)  # type: ignore[arg-type]


XS = [i / 100 for i in range(101)]


def rows(text: str) -> list[str]:
    """The picture's rows, top first, without the axis."""
    return [line[7:63] for line in text.splitlines() if len(line) > 6 and line[6] in "┤│"]


def test_a_dot_is_where_it_should_be() -> None:
    """Catches rows upside down and bits of a cell mixed up: U+2840 is the lower left dot, U+2808 the upper right."""
    canvas = Canvas(2, 2)
    canvas.dot(0, 0, "")
    canvas.dot(3, 7, "")
    canvas.dot(4, 0, "")  # outside: cut off
    canvas.dot(0, -1, "")
    assert [canvas.row(i).plain for i in range(2)] == [" \u2808", "\u2840 "]


def test_a_rising_curve_rises() -> None:
    picture = rows(plot(panel(curve("up", XS, lambda x: 10 * x))).plain)
    first = [row.strip() and len(row) - len(row.lstrip()) for row in picture]
    assert len(picture) == 16
    assert first == sorted(first, reverse=True) and first[-1] == 0 and first[0] > 50


def test_a_constant_is_level_and_steps_are_not_lost() -> None:
    picture = rows(plot(panel(curve("flat", XS, lambda x: 0.0))).plain)
    assert picture[-1].strip() and not any(row.strip() for row in picture[:-1])


def test_names_stand_in_order() -> None:
    """The curve that leaves the picture first is named first; all names are there, also those that end together."""
    slopes = (40, 20, 12, 5, 5.01, 0.001, 0)
    lines = plot(panel(*(curve(f"slope {s}", XS, lambda x, s=s: s * x) for s in slopes))).plain.splitlines()
    named = [line.rpartition("slope ")[2].strip() for line in lines if "slope " in line]
    assert named == ["40", "20", "12", "5.01", "5", "0.001", "0"]


def test_the_mark_is_a_full_cell() -> None:
    marked = rows(plot(panel(curve("flat", XS, lambda x: 0.0), mark=(0.5, 10.0))).plain)
    assert [(i, row.index("⣿")) for i, row in enumerate(marked) if "⣿" in row] == [(0, 28)]


def test_bars() -> None:
    assert bar(10, 10, 4) == "████"
    assert bar(5, 10, 4) == "██"
    assert bar(1 / 32 * 10, 10, 4) == "▏"
    assert bar(0, 10, 4) == "" == bar(float("nan"), 10, 4)
