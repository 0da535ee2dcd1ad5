"""How a certificate looks in a terminal: a table per part, the conditions, one line of verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outrider.cli.tables import show_table

if TYPE_CHECKING:
    from outrider.certificate import Certificate
    from outrider.certificate.distribution import DistributionResult
    from outrider.certificate.identity import IdentityResult
    from outrider.certificate.invariance import InvarianceResult


def show_certificate(console: Console, certificate: Certificate) -> None:
    for title, results in (
        ("temperature 0", certificate.greedy),
        ("temperature 1, Gumbel coupling", certificate.gumbel),
        ("trees of guesses", certificate.trees),
    ):
        if results:
            show_table(console, _identity_table(title, results))
        for r in results:
            if r.first is not None:
                console.print(f"  first difference with {r.drafter}, gamma {r.gamma}: {r.first}", markup=False)
            if r.error is not None:
                console.print(f"  {r.drafter}, gamma {r.gamma}: {r.error}", markup=False)
    if certificate.distribution:
        show_table(console, _distribution_table(certificate.distribution))
    for remedy in dict.fromkeys(r.remedy for r in certificate.distribution if r.remedy):
        console.print(f"  no power: {remedy}", markup=False)
    if certificate.invariance:
        show_table(console, _invariance_table(certificate.invariance))
    if certificate.left_out:
        console.print(f"left out: {', '.join(certificate.left_out)}", markup=False)
    console.print(", ".join(f"{k} {v}" for k, v in certificate.conditions.items()), style="dim", markup=False)
    console.print(
        f"{certificate.verdict.upper()}: {certificate.target} with {certificate.drafter}: {certificate.mismatches} of "
        f"{certificate.tokens:,} compared tokens differ; {certificate.seconds:.0f} s",
        markup=False,
    )


def _identity_table(title: str, results: Sequence[IdentityResult]) -> Table:
    table = _table(
        f"Bit identity: {title}", ("drafter", "gamma", "slots", "seeds", "tokens", "differ", "alpha", "per run")
    )
    for r in results:
        seeds = " ".join(map(str, sorted(set(r.seeds)))) or "-"
        gamma = str(r.gamma) if r.tree is None else f"{r.gamma}, {r.tree} nodes"
        table.add_row(
            escape(r.drafter), gamma, str(r.slots), seeds, str(r.tokens), str(r.mismatches), f"{r.alpha:.2f}",
            f"{r.tokens_per_run:.2f}", _mark(r),
        )  # fmt: skip
    return table


def _distribution_table(results: Sequence[DistributionResult]) -> Table:
    table = _table(
        "Distribution under the coupling: pairs of tokens",
        ("test of", "draft", "rule", "draws", "p-value", "detects"),
    )
    for r in results:
        table.add_row(
            r.part,
            escape(r.drafter),
            r.verifier,
            f"{r.samples:,}",
            f"{r.p_value:.2g}",
            f"{r.detects:.3f}",
            _distribution_mark(r),
        )
    return table


def _invariance_table(results: Sequence[InvarianceResult]) -> Table:
    table = _table("Row invariance of the kernels", ("a row with", "logit rows", "changed"))
    for r in results:
        table.add_row(r.change, str(r.rows), str(r.changed), _mark(r) if r.required else "not promised")
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    words = {"drafter", "draft", "rule", "test of", "a row with"}
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right")
    table.add_column("")
    return table


def _distribution_mark(result: DistributionResult) -> str:
    if result.inconclusive:
        return "no power"
    if result.part == "control":
        return "caught" if result.passed else "FAILED: not caught"
    return _mark(result)


def _mark(result: IdentityResult | InvarianceResult | DistributionResult) -> str:
    return "ok" if result.passed else "FAILED"
