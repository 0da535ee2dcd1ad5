"""The curves of ``outrider bench gpu`` as figures: a step against guesses, context and rows; throughput under load."""

from __future__ import annotations

from typing import Any

from outrider.report.panels import Curve, Figure, Panel

PANELS = (
    ("gamma", "Guesses", "guesses γ", {"by_gamma": "with a draft model"}),
    ("context", "Context", "tokens in use", {"by_context": "plain", "by_context_speculative": "speculative"}),
    ("rows", "Rows", "rows in a batch", {"by_rows": "plain", "by_rows_speculative": "speculative"}),
)


def figures(results: dict[str, Any]) -> list[Figure]:
    """What was measured of the curves as one figure; none where no curve has two points."""
    panels = [panel for what in PANELS if (panel := _panel(results, *what)) is not None]
    device = results.get("machine", {}).get("device", "unknown device")
    caption = f"Milliseconds of a step on {device}, {results.get('size', '?')} shapes"
    steps = [Figure("gpu-curves", caption, tuple(panels))] if panels else []
    load = _load(results.get("load"))
    return steps if load is None else [*steps, Figure("gpu-load", f"Tokens a second on {device}", (load,))]


def _load(points: Any) -> Panel | None:
    """Throughput against the number of requests at once, beside what reading the weights once a step would allow."""
    if not isinstance(points, list) or len(points) < 2:
        return None
    rows = tuple(point["rows"] for point in points)
    lines = [
        Curve(name.replace("_", " "), rows, tuple(point[name]["tokens_per_second"] for point in points))
        for name in ("plain", "speculative", "transformers", "transformers_paged")
        if all("tokens_per_second" in point.get(name, {}) for point in points)
    ]
    lines.append(Curve("weights read once a step", rows, tuple(p["roofline_tokens_per_second"] for p in points)))
    highest = max(max(line.ys) for line in lines[:-1])
    return Panel("Load", "requests at once", "tokens a second", tuple(lines), (0, max(rows)), (0, 1.5 * highest))


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
