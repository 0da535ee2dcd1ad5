"""How a plan looks in a terminal: what was measured, what it predicts, one sentence, and predicted beside measured."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from outrider.cli.common import answers
from outrider.cli.tables import plain_table, show_table

WITHIN = 10.0
"""Per cent that a prediction may be off."""

BUSY = 0.2
"""Cores that others may use before figures are doubtful."""

EXPLAINED = """\
cost of a run: in plain steps of the same batch, by its tokens in a row; alpha:
kept over examined guesses; by number: chance that guess 1, 2, ... is made and
kept, if those before it were; cost of a guess: what the drafter adds to a
step, in plain steps; speed-up: over plain decoding of the same batch, without
prefill. Intervals: 95 %, over prompts."""


def show(content: dict[str, Any]) -> None:
    where = f"{content['device']}, {content['conditions'].get('dtype')}, {content['conditions'].get('engine')}"
    heat = f"temperature {content['options'].get('temperature', 0):g}"
    answers.print(f"Plan for {content['target']} ({where}), {heat}", style="bold", markup=False)
    for title, table in (
        ("Cost of a run by width", _costs(content)),
        ("Acceptance", _acceptance(content)),
        ("Cost of a guess", _prices(content)),
        ("Predicted speed-up by gamma", _predicted(content)),
        ("Predicted and measured", _checks(content)),
    ):
        if table.row_count:
            answers.print(f"\n{title}", style="bold")
            show_table(answers, table)
    errors = [abs(c["error_percent"]) for c in content["checks"] if c["error_percent"] is not None]
    if errors:
        near = sum(error <= WITHIN for error in errors)
        answers.print(f"{near} of {len(errors)} predictions are within {WITHIN:g} % of what was measured")
    if (content["others_cores"] or 0) > BUSY:
        answers.print(
            f"other programs used {content['others_cores']:.1f} cores meanwhile: measure again on a quiet machine",
            style="yellow",
        )
    answers.print(f"\n{EXPLAINED}", style="dim")
    answers.print(f"\n{content['sentence']}", style="bold", markup=False)


def _costs(content: dict[str, Any]) -> Table:
    widths = sorted({int(width) for row in content["costs"] for width in row["widths"]})
    table = plain_table(("batch", "plain ms", *map(str, widths)))
    for row in content["costs"]:
        found = (row["widths"].get(str(width)) for width in widths)
        table.add_row(str(row["batch"]), f"{row['plain_step_ms']:.2f}", *(_number(cost) for cost in found))
    return table


def _acceptance(content: dict[str, Any]) -> Table:
    table = plain_table(("draft", "task", "prompts", "alpha", "tokens/run", "by number"))
    for row in content["acceptance"]:
        numbers = " ".join(f"{chance:.2f}" for chance in row["by_number"])
        tokens = _number(row["tokens_per_run"])
        table.add_row(row["draft"], row["task"], str(row["prompts"]), _number(row["alpha"]), tokens, numbers)
    return table


def _prices(content: dict[str, Any]) -> Table:
    table = plain_table(("draft", "batch", "asking", "each guess"))
    for row in content["prices"]:
        table.add_row(row["draft"], str(row["batch"]), f"{row['asking']:.3f}", f"{row['guess']:.3f}")
    return table


def _predicted(content: dict[str, Any]) -> Table:
    gammas = sorted({cell["gamma"] for cell in content["cells"]})
    table = plain_table(("draft", "batch", *map(str, gammas)))
    for draft, batch in dict.fromkeys((cell["draft"], cell["batch"]) for cell in content["cells"]):
        found = {c["gamma"]: c["speedup"] for c in content["cells"] if (c["draft"], c["batch"]) == (draft, batch)}
        table.add_row(draft, str(batch), *(_number(found.get(gamma)) for gamma in gammas))
    return table


def _checks(content: dict[str, Any]) -> Table:
    table = plain_table(("draft", "gamma", "batch", "predicted", "measured", "error", "same text"))
    for row in content["checks"]:
        low, high = row["interval"]
        spread = "" if low is None else f" ({low:.2f} to {high:.2f})"
        error = "-" if row["error_percent"] is None else f"{row['error_percent']:+.1f} %"
        table.add_row(
            row["draft"], str(row["gamma"]), str(row["batch"]), _number(row["predicted"]),
            f"{_number(row['measured'])}{spread}", error, f"{row['same_text']}/{row['texts']}",
        )  # fmt: skip
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
