"""The growth curves of ``outrider bench gpu`` as a figure: time of a step against guesses, context and rows."""

from __future__ import annotations

from typing import Any

from outrider.report.panels import Curve, Figure, Panel

_PANELS = (
    ("gamma", "Guesses", "guesses γ", {"by_gamma": "with a draft model"}),
    ("context", "Context", "tokens in use", {"by_context": "plain", "by_context_speculative": "speculative"}),
    ("rows", "Rows", "rows in a batch", {"by_rows": "plain", "by_rows_speculative": "speculative"}),
)


def figures(results: dict[str, Any]) -> list[Figure]:
    """What was measured of the curves as one figure; none where no curve has two points."""
    panels = [panel for what in _PANELS if (panel := _panel(results, *what)) is not None]
    device = results.get("machine", {}).get("device", "unknown device")
    caption = f"Milliseconds of a step on {device}, {results.get('size', '?')} shapes"
    return [Figure("gpu-curves", caption, tuple(panels))] if panels else []


def _panel(results: dict[str, Any], by: str, title: str, label: str, names: dict[str, str]) -> Panel | None:
    lines = []
    for name, called in names.items():
        points = results.get(name)
        if isinstance(points, list) and len(points) > 1:
            lines.append(Curve(called, tuple(p[by] for p in points), tuple(p["median"] for p in points)))
    if not lines:
        return None
    widest, highest = max(max(line.xs) for line in lines), max(max(line.ys) for line in lines)
    return Panel(title, label, "ms a step", tuple(lines), (0, widest), (0, 1.1 * highest))
