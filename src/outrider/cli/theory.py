"""``outrider theory``: what the formulas promise, before anything is run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.columns import Columns
from rich.table import Table

from outrider import theory as formulas
from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.errors import BadOption, require
from outrider.report import plots, terminal
from outrider.report.panels import Figure
from outrider.report.theory import Case, figures, hierarchy_region
from outrider.trace import finite

LONGEST = 1000
"""The longest draft that can be asked about: no run has room for more, and each length is computed."""


def theory(
    alpha: Annotated[float, typer.Option(help="Acceptance rate: the chance that a guess is kept, 0 to 1.")],
    c: Annotated[float, typer.Option("--c", help="Time of a guess over time of a plain target step.")] = 0.0,
    operations: Annotated[
        float, typer.Option(help="Arithmetic operations of a guess over those of a target token.")
    ] = 0.0,
    width_costs: Annotated[
        str | None,
        typer.Option(help="Measured time of runs by width, over a plain step, as 1:1,5:1.3,9:1.8; of both models."),
    ] = None,
    lower_alpha: Annotated[
        float | None,
        typer.Option(help="A hierarchy: how often the draft model keeps guesses of a drafter below it, 0 to 1."),
    ] = None,
    lower_c: Annotated[
        float | None, typer.Option(help="Time of a guess of that lower drafter over time of a plain target step.")
    ] = None,
    lower_alone: Annotated[
        float | None,
        typer.Option(help="How often the target itself keeps those; if unknown, alpha times lower-alpha, a low guess."),
    ] = None,
    most: Annotated[int, typer.Option(help="The longest draft to consider.")] = 32,
    draw: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Draw Figures 2, 3 and 4 here, and where a hierarchy pays.")
    ] = True,
    plot: Annotated[Path | None, typer.Option(help="Also write them as PNG files into this directory.")] = None,
    as_json: common.Json = False,
) -> None:
    """The best number of guesses and what it gains, by the closed forms of Leviathan et al. 2023.

    With --lower-alpha also what a hierarchy gains (Tulsian et al. 2024): a draft model, and a drafter below it.
    """
    if plot is not None:
        plots.check_available()
    _check(alpha, c, operations, most)
    _check_lower(c, lower_alpha, lower_c, lower_alone)
    widths = _widths(width_costs)
    case = Case(alpha, formulas.Costs(widths, c), _longest(most, width_costs), operations)
    levels = None
    if lower_alpha is not None:
        levels = formulas.Hierarchy(alpha, c, lower_alpha, lower_c or 0.0, lower_alone, widths, widths)
    drawn: list[Figure] = []
    if plot is not None or (draw and not as_json):
        drawn = [*figures(case), *([] if levels is None else [hierarchy_region(levels, case.most)])]
    if as_json:
        answers.out(json.dumps(finite(_numbers(case, c, levels))), highlight=False)
    else:
        answers.print(_table(case))
        answers.print(_verdict(case, c))
        if levels is not None:
            answers.print(_hierarchy_verdict(levels, _best_levels(levels, case)))
        if draw:
            pictures = [terminal.plot(panel) for figure in drawn for panel in figure.panels]
            answers.print()
            answers.print(Columns(pictures, padding=(1, 4)))
    for path in plots.save(drawn, plot) if plot is not None else ():
        notes.print(f"wrote {path}", markup=False)


def _check_lower(c: float, lower_alpha: float | None, lower_c: float | None, lower_alone: float | None) -> None:
    for option, value in (("--lower-c", lower_c), ("--lower-alone", lower_alone)):
        require(
            value is None or lower_alpha is not None, f"{option} {value} is of a hierarchy: give --lower-alpha, too"
        )
    for option, value in (("--lower-alpha", lower_alpha), ("--lower-alone", lower_alone)):
        require(value is None or 0 <= value <= 1, f"{option} must be between 0 and 1, got {value}")
    good = lower_c is None or (math.isfinite(lower_c) and lower_c >= 0)
    require(good, f"--lower-c must be a number of at least 0, got {lower_c}")
    require(lower_alpha is None or c > 0, "--c must be above 0 with --lower-alpha: a draft model's run takes time")


def _check(alpha: float, c: float, operations: float, most: int) -> None:
    """By the names of the options: the formulas have names of their own for some of them."""
    require(0 <= alpha <= 1, f"--alpha must be between 0 and 1, got {alpha:g}")
    for option, value in (("--c", c), ("--operations", operations)):
        require(math.isfinite(value) and value >= 0, f"{option} must be a number of at least 0, got {value:g}")
    require(1 <= most <= LONGEST, f"--most must be from 1 to {LONGEST} guesses, got {most}")


def _widths(text: str | None) -> formulas.ByNumber:
    if text is None:
        return 1.0
    return formulas.interpolated(_pairs(text))


def _longest(most: int, text: str | None) -> int:
    """No further than costs were measured."""
    return most if text is None else min(most, max(_pairs(text)) - 1)


def _pairs(text: str) -> dict[int, float]:
    try:
        found = [part.split(":") for part in text.split(",")]
        table = {int(width): float(cost) for width, cost in found}
    except ValueError:
        raise BadOption(f"--width-costs must look like 1:1,5:1.3,9:1.8, got {text!r}") from None
    require(min(table) == 1, f"--width-costs must start at width 1, the plain step, got {text!r}")
    require(max(table) > 1, f"--width-costs must have a width above 1, for runs with guesses, got {text!r}")
    good = all(math.isfinite(cost) and cost > 0 for cost in table.values())
    require(good, f"--width-costs must be costs above 0, got {text!r}")
    return table


def _numbers(case: Case, c: float, levels: formulas.Hierarchy | None) -> dict[str, object]:
    best = None if levels is None else _best_levels(levels, case)
    return {
        "alpha": case.alpha,
        "c": c,
        "best": asdict(case.best),
        "oracle_tokens": formulas.oracle_tokens(case.alpha),
        "oracle_speedup": formulas.oracle_speedup(case.alpha, c),
        "by_gamma": [asdict(case.at(gamma)) for gamma in range(case.most + 1)],
        **({} if best is None else {"hierarchy": asdict(best) | {"gain": best.gain}}),
    }


def _table(case: Case) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("γ", "tokens per run", "speed-up", "operations", "memory reads"):
        table.add_column(name, justify="right")
    table.add_column("")
    shown = [case.at(gamma) for gamma in range(min(case.most, max(8, case.best.gamma + 3)) + 1)]
    largest = max(row.speedup for row in shown)
    for row in shown:
        best = row.gamma == case.best.gamma
        table.add_row(
            str(row.gamma), f"{row.tokens:.2f}", f"{row.speedup:.2f}", f"{row.operations:.2f}", f"{row.memory:.2f}",
            terminal.bar(row.speedup, largest) + (" ◀" if best else ""), style="bold" if best else "",
        )  # fmt: skip
    return table


def _verdict(case: Case, c: float) -> str:
    best = case.best
    if best.gamma == 0:
        return f"Speculation does not pay: a guess kept with chance {case.alpha:g} costs more than it saves."
    limit = f" (the longest considered, --most {case.most})" if best.gamma == case.most else ""
    return (
        f"Best: γ = {best.gamma}{limit}: {best.tokens:.2f} tokens per target run, {best.speedup:.2f} times as fast, "
        f"{best.operations:.2f} times the operations.\n"
        f"Bound: {formulas.oracle_tokens(case.alpha):.2f} tokens per target run and "
        f"{formulas.oracle_speedup(case.alpha, c):.2f} times as fast, were γ always right and every width free."
    )


def _best_levels(levels: formulas.Hierarchy, case: Case) -> formulas.HierarchyForecast:
    return levels.best(case.most, min(8, case.most))  # no further than costs were measured


def _hierarchy_verdict(levels: formulas.Hierarchy, best: formulas.HierarchyForecast) -> str:
    pays = "pays" if best.gain > 1 else "does not pay"
    below = f"{best.guesses} guess{'es' if best.guesses > 1 else ''} below and γ = {best.gamma}"
    alone = f"{best.lower_alone:.2f}"
    if levels.lower_alone is None:
        alone += f" (if the target keeps {levels.assumed_alone:.2f} of its guesses; --lower-alone tells better)"
    return (
        f"The hierarchy {pays}: {best.speedup:.2f} times as fast as plain decoding with {below}, where the draft model "
        f"alone has {best.middle_alone:.2f} and the lower drafter alone {alone}."
    )
