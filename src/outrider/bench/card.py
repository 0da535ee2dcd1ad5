"""The measured part of a model card: a table made from a report of ``outrider measure``, and the command for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from outrider.errors import require

BEGIN, END = "<!-- measured: begin (written by outrider measure) -->", "<!-- measured: end -->"

EXPLAINED = (
    "alpha is the mean overlap of p and q over the guesses whose fate was decided (n of them), c the time of a guess "
    "over the time of a plain step. Speed-ups are against plain decoding in the same run: with the same shapes, and "
    "unpadded. Intervals are 95 %, by a bootstrap over prompts."
)


def section(report: dict[str, Any]) -> str:
    """Markdown of everything a report says, per draft, gamma, temperature and task."""
    lines = [BEGIN, "## Measured", "", "```sh", report["command"], "```", ""]
    lines += ["On " + ", ".join(f"{k} {v}" for k, v in report["conditions"].items()) + ".", "", EXPLAINED, ""]
    named = [name for name in ("draft", "gamma") if len({row[name] for row in report["rows"]}) > 1]
    columns = [*named, "t", "task", "prompts", "n", "alpha", "tokens per run", "c", "speed-up", "unpadded"]
    lines += [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for row in report["rows"]:
        stats = row["stats"]
        cells = [str(row[name]) for name in named]
        cells += [
            f"{row['temperature']:g}", row["task"], str(row["prompts"]), str(stats["examined"]),
            with_interval(stats["alpha"], row["alpha_interval"]), number(stats["tokens_per_run"]),
            number(row["cost"], 3), with_interval(row["speedup"], row["speedup_interval"]),
            with_interval(row["speedup_narrow"], row["speedup_narrow_interval"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, END]) + "\n"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def with_interval(value: float | None, interval: Any, digits: int = 2) -> str:
    low, high = interval
    if value is None or math.isnan(value):
        return "-"
    known = low is not None and not math.isnan(low)
    return number(value, digits) + (f" ({number(low, digits)}-{number(high, digits)})" if known else "")


def update(path: Path, measured: str) -> None:
    """Put a measured section into a card, in place of an earlier one or at the end."""
    text = path.read_text(encoding="utf-8") if path.is_file() else f"# {path.resolve().parent.name}\n"
    begin, end = text.find(BEGIN), text.find(END)
    require((begin < 0) == (end < 0), f"{path} has one of the two marks around a measured section; mend or remove it")
    if begin < 0:
        text = text.rstrip("\n") + "\n\n" + measured
    else:
        text = text[:begin] + measured + text[end + len(END) :].lstrip("\n")
    path.write_text(text, encoding="utf-8")
