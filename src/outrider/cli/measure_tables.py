"""How a report of ``outrider measure`` looks: tables that fit into 80 columns, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from outrider.cli.common import answers
from outrider.cli.tables import plain_table, show_table

EXPLAINED = """\
n: guesses whose fate was decided; oracle: 1/(1 - alpha) tokens per run, were
gamma right every time; same text: prompts whose text is plain decoding's; c:
time of a guess over time of a plain step; plain, spec.: tokens per second of
plain and of speculative decoding; speed-up: against plain decoding with the
same shapes; unpadded: against unpadded plain decoding. Intervals: 95 %, over
prompts."""


def show(report: dict[str, Any]) -> None:
    keys = list(dict.fromkeys((r["draft"], r["temperature"], r["gamma"]) for r in report["rows"]))
    for draft, temperature, gamma in sorted(keys, key=lambda key: list(report["drafters"]).index(key[0])):
        rows = [r for r in report["rows"] if (r["draft"], r["temperature"], r["gamma"]) == (draft, temperature, gamma)]
        answers.print(f"{report['target']} with {report['drafters'][draft]}", style="bold", markup=False)
        answers.print(f"temperature {temperature:g}, gamma {gamma}, {_rule(report)}", markup=False)
        show_table(answers, _acceptance(rows))
        answers.print()
        show_table(answers, _speed(rows))
        for error in dict.fromkeys(r["stats"].get("drafter_error") for r in rows):
            if error:
                answers.print(f"the drafter failed and was left out: {error}", style="red", markup=False)
        answers.print()
    if report["auto_over_best"]:
        answers.print("auto beside the best single draft of these runs", style="bold")
        show_table(answers, _choices(report["auto_over_best"]))
        answers.print()
    answers.print(EXPLAINED, style="dim")


def _choices(rows: Sequence[dict[str, Any]]) -> Table:
    from outrider.bench.card import with_interval

    table = plain_table(("temp.", "task", "best draft", "gamma", "auto over it"))
    for r in rows:
        figures = with_interval(r["ratio"], r["interval"])
        table.add_row(f"{r['temperature']:g}", r["task"], r["draft"], str(r["gamma"]), figures)
    return table


def _rule(report: dict[str, Any]) -> str:
    options = report["options"]
    return str(options["coupling"]) if options["lenience"] == 1 else f"INEXACT, lenience {options['lenience']:g}"


def _acceptance(rows: Sequence[dict[str, Any]]) -> Table:
    from outrider.bench.card import number, with_interval

    table = plain_table(("task", "n", "alpha", "tokens/run", "oracle", "same text"))
    for r in rows:
        stats = r["stats"]
        table.add_row(
            r["task"], str(stats["examined"]), with_interval(stats["alpha"], r["alpha_interval"]),
            number(stats["tokens_per_run"]), number(r["oracle_tokens"]), f"{r['identical']}/{r['prompts']}",
        )  # fmt: skip
    return table


def _speed(rows: Sequence[dict[str, Any]]) -> Table:
    from outrider.bench.card import number, with_interval

    table = plain_table(("task", "c", "plain", "spec.", "speed-up", "unpadded"))
    for r in rows:
        table.add_row(
            r["task"], number(r["cost"], 3), number(r["plain_tokens_per_second"], 1),
            number(r["tokens_per_second"], 1), with_interval(r["speedup"], r["speedup_interval"]),
            number(r["speedup_narrow"]),
        )  # fmt: skip
    return table


def csv_of(report: dict[str, Any]) -> str:
    """A line per row of the report; lists become two columns, statistics ``stats_`` and their name."""
    lines = [_flat({"target": report["target"], **row}) for row in report["rows"]]
    page = io.StringIO()
    writer = csv.DictWriter(page, list(lines[0]) if lines else ["target"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return page.getvalue()


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name == "stats":
            found |= {f"stats_{k}": v for k, v in value.items() if isinstance(v, (int, float, str)) or v is None}
        elif isinstance(value, (list, tuple)):
            found |= {f"{name}_low": value[0], f"{name}_high": value[1]}
        else:
            found[name] = value
    return found
