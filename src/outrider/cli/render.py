"""How results look in a terminal: the coloured trace of Figure 1, and statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.report.charts import ColouredTrace, TimeLines
from outrider.report.time_lines import as_text
from outrider.trace import Stats, Trace

if TYPE_CHECKING:
    from outrider.output import Output

Decode = Callable[[Sequence[int]], str]

ACCEPTED, REJECTED, CORRECTED, BONUS = "green", "red strike", "blue", "cyan"
ORIGINS = {"accepted": ACCEPTED, "rejected": REJECTED, "corrected": CORRECTED, "bonus": BONUS, "plain": BONUS}


def trace_lines(trace: Trace, decode: Decode, marks: bool = False) -> list[Text]:
    """One line per target run: guesses kept, the guess that was not, and the target's own token.

    ``marks`` where there are no colours to tell them apart.
    """
    lines = []
    no, own, more = ("[-{}-]", "{{+{}+}}", "{{{}}}") if marks else ("{}", "{}", "{}")
    for record in trace.records:
        line = Text()
        for token in record.drafted[: min(record.accepted, record.emitted)]:
            line.append(_shown(decode([token])), ACCEPTED)
        rejected = record.drafted[record.accepted :]
        if record.emitted > record.accepted:  # the text did not end among the guesses
            line.append(no.format(_shown(decode(rejected[:1]))) if rejected else "", REJECTED)
            shown = _shown(decode([record.token]))
            line.append(own.format(shown) if rejected else more.format(shown), CORRECTED if rejected else BONUS)
        lines.append(line)
    return lines


def coloured_lines(picture: ColouredTrace | TimeLines, colours: bool) -> list[Text]:
    """A trace of a result file in the colours of Figure 1, or with signs where there are none; a time line as it is."""
    if isinstance(picture, TimeLines) or not colours:
        return [Text(line) for line in as_text(picture)]
    lines = []
    for number, run in enumerate(picture.runs, 1):
        line = Text(f"{number:2d} ", "dim")
        for part in run:
            if part.origin != "unread":
                line.append(part.text, ORIGINS[part.origin])
        lines.append(line)
    return lines


def _shown(text: str) -> str:
    return text.replace("\n", "⏎")


def print_trace(console: Console, trace: Trace, decode: Decode, most: int = 40) -> None:
    marks = not console.color_system
    lines = trace_lines(trace, decode, marks)
    no, own, more = ("[-{}-]", "{{+{}+}}", "{{{}}}") if marks else ("{}", "{}", "{}")
    legend = Text.assemble(
        ("accepted guess", ACCEPTED), "  ", (no.format("rejected guess"), REJECTED), "  ",
        (own.format("the target's correction"), CORRECTED), "  ",
        (more.format("the target's own token, all guesses kept"), BONUS),
    )  # fmt: skip
    console.print(legend)
    for number, line in enumerate(lines[:most], 1):
        console.print(Text(f"{number:3d}  ", "dim") + line, soft_wrap=True)
    if len(lines) > most:
        console.print(f"     ... and {len(lines) - most} more target runs", style="dim")


def ending(output: Output) -> str:
    """Why a text ended."""
    reasons = {
        "eos": f"the end token {output.stop_reason}",
        "stop": f"the stop string {output.stop_reason!r}",
        "length": f"the limit of tokens, after {len(output.tokens)}",
        "criteria": "a stopping criterion",
        "error": f"an error: {output.error}",
        "interrupted": "Ctrl-C",
    }
    return reasons.get(output.finish_reason, output.finish_reason)


def engine_and_dtype(stats: Stats) -> str:
    """What ran the target, and in which dtype where its name does not say so."""
    return stats.engine if stats.dtype in stats.engine else f"{stats.engine}, {stats.dtype}"


def stats_table(stats: Stats, output: Output | None = None) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    low, high = stats.alpha_interval
    expected = "" if math.isnan(stats.alpha) else f"{stats.alpha:.3f} expected, "  # beam search has no overlap
    rows = [
        ("engine", f"{engine_and_dtype(stats)}{', CUDA graphs' if stats.graphs else ''}"),
        ("drafter", stats.drafter),
        ("tokens", f"{stats.tokens} in {stats.runs} target runs"),
        ("tokens per target run", f"{stats.tokens_per_run:.2f}"),
        ("tokens per second", f"{stats.tokens_per_second:.1f}"),
        (
            "acceptance rate alpha",
            f"{expected}{stats.alpha_counted:.3f} counted [{low:.2f}, {high:.2f}]" if stats.examined else "no guesses",
        ),
        ("guesses", f"{stats.drafted} drafted, {stats.accepted} accepted, {stats.wasted} wasted"),
        ("seconds", ", ".join(f"{k} {v:.2f}" for k, v in stats.seconds.items())),
    ]
    if output is not None:
        rows.insert(3, ("ended by", ending(output)))
    if not stats.exact:
        rows.append(("INEXACT", f"lenience {stats.lenience:g}: the text does not follow the target's distribution"))
    rows += [
        (
            f"{level.drafter} for {level.model}",
            f"{level.tokens_per_run:.2f} tokens per run of {level.runs}, {level.alpha_counted:.3f} of guesses kept",
        )
        for level in stats.levels
    ]
    if stats.drafter_error:
        rows.append(("drafter failed", stats.drafter_error))
    for name, value in rows:
        table.add_row(f"[dim]{name}[/dim]", value.replace("[", "\\["))
    return table
