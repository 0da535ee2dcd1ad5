"""Time lines as text: a letter for each stretch of a column, for terminals and pages without pictures."""

from __future__ import annotations

from outrider.report.charts import ColouredTrace, TimeLines, TracePart

WIDE = 72
"""Characters of the longest line."""


def as_text(picture: ColouredTrace | TimeLines) -> list[str]:
    """A picture without colours."""
    return _trace(picture) if isinstance(picture, ColouredTrace) else _lines(picture)


def _lines(lines: TimeLines) -> list[str]:
    """Each part is as wide as it was long; a bar ends a run, and before the first one stands what is read once."""
    longest = max((line.length for line in lines.lines), default=0.0) or 1.0
    wide = max((len(line.label) for line in lines.lines), default=0)
    found = []
    for line in lines.lines:
        drawn, at = "", 0.0
        for part in line.parts:
            at += part.length * WIDE / longest
            drawn += lines.letters[part.kind] * max(0, round(at) - len(drawn))
            if drawn and part.kind == lines.ends:
                drawn = drawn[:-1] + "|"
        found.append(f"{line.label:{wide}} {drawn}")
    return found


def marked(run: tuple[TracePart, ...]) -> list[tuple[str, str]]:
    """Origin and text of what a line shows without colours: guesses behind a rejected one are left out."""
    signs = {"rejected": "[-{}-]", "corrected": "[{}]", "bonus": "[{}]", "plain": "[{}]"}
    return [(part.origin, signs.get(part.origin, "{}").format(part.text)) for part in run if part.origin != "unread"]


def _trace(trace: ColouredTrace) -> list[str]:
    lines = [
        f"{number:2d} " + "".join(text for _, text in marked(run)).rstrip() for number, run in enumerate(trace.runs, 1)
    ]
    return [*lines, *([f"... and {trace.left_out} more"] if trace.left_out else [])]
