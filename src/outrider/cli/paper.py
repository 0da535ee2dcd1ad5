"""``outrider paper``: every table and figure of the papers, theirs beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.cli.tables import plain_table, show_table
from outrider.errors import require
from outrider.trace import strict_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.paper.lab import Lab
    from outrider.paper.results import PaperResults
    from outrider.paper.table import Experiment


def paper(
    quick: Annotated[bool, typer.Option("--quick", help="Few and short texts, each timed once: minutes.")] = False,
    only: Annotated[
        str | None, typer.Option(help="Some of them, by name: table2,figure1,chen-table1. --list names all.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="PaperResults, a line of JSON for each finished part; the same command goes on from there."),
    ] = Path("outrider-paper.jsonl"),
    page: Annotated[Path | None, typer.Option(help="Also write the tables here, as Markdown.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same texts.")] = 0,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    listed: Annotated[bool, typer.Option("--list", help="Name the experiments and run none.")] = False,
    as_json: common.Json = False,
) -> None:
    """Regenerate the tables and figures of Leviathan, Chen and Tulsian et al., theirs beside ours.

    Ctrl-C loses nothing: what was finished is in --out.
    """
    from outrider.paper.experiments import EXPERIMENTS, chosen

    if listed:
        for experiment in EXPERIMENTS:
            answers.print(f"{experiment.name:16} {experiment.paper}, {experiment.title}", markup=False, highlight=False)
        return
    experiments = chosen(only)
    require(not out.is_dir(), f"--out {out} is a directory; name a file")
    common.check_writable(out, "--out")
    common.check_writable(page, "--page")
    common.check_apart(out=out, page=page)
    from outrider.paper.lab import Amount, Lab
    from outrider.paper.page import page as written
    from outrider.paper.results import PaperResults

    results = PaperResults.at(out)
    records = _run(experiments, Lab(Amount.of(quick, seed), device, dtype), results)
    if page is not None:
        page.write_text(written(experiments, records, _command(quick, only, seed)), encoding="utf-8")
    if as_json:
        answers.out(strict_json({"records": records}), highlight=False)
    else:
        for experiment in experiments:
            _show(experiment, [record for record in records if record["experiment"] == experiment.name])
    notes.print(f"results: {out}" + (f", page: {page}" if page else ""), markup=False)


def _run(experiments: Sequence[Experiment], lab: Lab, results: PaperResults) -> list[dict[str, Any]]:
    from outrider.paper.run import run

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=notes, transient=True) as bar:
        shown = bar.add_task("", total=None)
        try:
            return run(
                experiments, lab, results,
                lambda what, done, total: bar.update(shown, description=what, completed=done, total=total),
            )  # fmt: skip
        except KeyboardInterrupt:
            bar.stop()
            notes.print(f"interrupted: {len(results.records)} parts are in {results.path}; the same command goes on",
                        markup=False)  # fmt: skip
            raise typer.Exit(130) from None


def _show(experiment: Experiment, records: list[dict[str, Any]]) -> None:
    from outrider.report.side_by_side import side_by_side

    header, body = side_by_side([row for record in records for row in record["rows"]])
    shown = plain_table(header, f"{experiment.paper}, {experiment.title}")
    for cells in body:
        shown.add_row(*cells)
    show_table(answers, shown)
    for record in records:
        for line in record["lines"]:
            answers.print(line, markup=False, highlight=False)
    answers.print(f"Why ours differ: {experiment.differs}\n", markup=False, highlight=False)


def _command(quick: bool, only: str | None, seed: int) -> str:
    words = ["outrider paper", *(["--quick"] if quick else []), *([f"--only {only}"] if only else []),
             *([f"--seed {seed}"] if seed else [])]  # fmt: skip
    return " ".join(words)
