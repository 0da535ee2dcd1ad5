"""Tables of ``outrider bench serve`` and ``outrider bench capacity``."""

from __future__ import annotations

from typing import Any

from outrider.cli.common import answers
from outrider.cli.tables import plain_table, show_table

LATENCIES = {
    "first_token": "to the first token", "per_token": "per token behind it", "between_chunks": "between two chunks",
    "whole": "whole answer",
}  # fmt: skip


def show_load(found: dict[str, Any]) -> None:
    """One load."""
    answers.print(
        f"{found['clients']} clients, {found['seconds']:.1f} s: {found['answers']} answers, {found['tokens']:,} tokens;"
        f" {found['tokens_per_second']:.1f} tokens and {found['requests_per_second']:.2f} answers per second"
    )
    answers.print(f"429: {found['refused_429']}; other errors: {_errors(found)}", markup=False)
    table = plain_table(("seconds", "p50", "p95", "n"))
    for name, shown in LATENCIES.items():
        table.add_row(shown, _seconds(found[name]["p50"]), _seconds(found[name]["p95"]), str(found[name]["n"]))
    show_table(answers, table)
    held = "not told by this server" if found["held"] is None else str(found["held"])
    answers.print(f"requests still held: {held}")
    if memory := found.get("resident_bytes"):
        answers.print("resident MiB: " + ", ".join(f"{n.replace('_', ' ')} {v / 2**20:.1f}" for n, v in memory.items()))
    if alone := found.get("alone"):
        answers.print(f"the same text alone: {alone['same']} of {alone['compared']}{_differing(alone)}")


def show_loads(found: dict[str, Any]) -> None:
    """A row for every load, plain beside speculative."""
    columns = (
        "clients",
        "plain t/s",
        "spec. t/s",
        "spec./plain",
        "plain/1",
        "spec./1",
        "p95 first",
        "p95 whole",
        "429",
    )
    table = plain_table((*columns, "errors"))
    for point in found["points"]:
        plain, speculative = point["plain"], point["speculative"]
        table.add_row(
            str(point["load"]), f"{plain['tokens_per_second']:.1f}", f"{speculative['tokens_per_second']:.1f}",
            _ratio(point["speculative_over_plain"]), _ratio(point["plain_over_one_by_one"]),
            _ratio(point["speculative_over_one_by_one"]), _pair(plain, speculative, "first_token"),
            _pair(plain, speculative, "whole"), str(plain["refused_429"] + speculative["refused_429"]),
            f"{_errors(plain)}, {_errors(speculative)}",
        )  # fmt: skip
    show_table(answers, table)
    answers.print(
        "t/s: tokens per second. spec./plain: speculative over plain; plain/1, spec./1: over one request after the "
        "other; ratios of medians (quartiles of turns, n). p95: seconds, plain and speculative.", style="dim",
    )  # fmt: skip
    texts = found["texts"]
    answers.print(
        f"the same text at every load and in both ways: {texts['same']} of {texts['compared']}{_differing(texts)}; "
        f"requests still held: {found['held']}"
    )


def show_capacity(found: dict[str, Any]) -> None:
    """Predictions, what a rate needs, and what was measured beside what was predicted."""
    knee = found["knee"]
    answers.print(
        f"one replica, {found['way']}: knee at {knee['load']:g} clients, {knee['tokens_per_second']:.1f} tokens and "
        f"{knee['requests_per_second']:.2f} answers per second, 95 % within {knee['whole_p95']:.2f} s"
    )
    table = plain_table(("replicas", "clients", "t/s", "answers/s", "p95 first", "p95 whole"))
    for row in found["predicted"]:
        table.add_row(
            f"{row['replicas']:,}", f"{row['load']:,.0f}", f"{row['tokens_per_second']:,.1f}",
            f"{row['requests_per_second']:,.2f}", f"{row['first_token_p95']:.2f}", f"{row['whole_p95']:.2f}",
        )  # fmt: skip
    show_table(answers, table)
    if needed := found.get("needed"):
        within = "" if needed["within"] is None else f", 95 % of them within {needed['within']:g} s"
        answers.print(f"{needed['rate']:g} answers per second{within}: {needed['replicas']:,} replicas")
    if compared := found.get("compared"):
        table = plain_table(("clients", "predicted t/s", "measured t/s", "measured/predicted", "p95 whole"))
        for row in compared["loads"]:
            table.add_row(
                f"{row['load']:g}", f"{row['predicted_tokens_per_second']:.1f}",
                f"{row['measured_tokens_per_second']:.1f}", f"{row['measured_over_predicted']:.2f}",
                f"{row['predicted_whole_p95']:.2f}, {row['measured_whole_p95']:.2f}",
            )  # fmt: skip
        answers.print(f"\n{compared['replicas']} replicas, predicted and measured:")
        show_table(answers, table)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _pair(plain: dict[str, Any], speculative: dict[str, Any], name: str) -> str:
    return f"{_seconds(plain[name]['p95'])}, {_seconds(speculative[name]['p95'])}"


def _ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    low, high = found["quartiles"]
    return f"{found['ratio']:.2f} ({low:.2f} to {high:.2f}, n={found['n']})"


def _errors(found: dict[str, Any]) -> str:
    shown = ", ".join(f"{status}: {count}" for status, count in found["errors"].items())
    return f"{shown} ({found['first_error']})" if shown else "none"


def _differing(part: dict[str, Any]) -> str:
    return f"; others: requests {part['differ'][:10]}" if part["differ"] else ""
