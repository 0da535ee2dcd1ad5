"""Numbers as a reader wants them: three digits that count, intervals, ticks of an axis."""

from __future__ import annotations

import math


def figure(value: float | None) -> str:
    """Three digits that count, and no more decimals than help; '-' where nothing is known."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if value == 0 or (isinstance(value, int) and size < 1e15):
        return f"{int(value):,}"
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 text", "2 texts"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return figure(value)
    return f"{figure(value)} ({figure(low)} to {figure(high)})"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` up to the first that reaches ``high``."""
    if not high > low:
        high = low + 1
    rough = (high - low) / max(1, most - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def tick_label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def shorten(text: str, most: int) -> str:
    """On one line, with an ellipsis where it is cut."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
