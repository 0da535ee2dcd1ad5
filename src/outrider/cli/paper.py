"""``outrider paper``: every table and figure of the papers, theirs beside ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from outrider.checks import check_64_bits
from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.cli.render import coloured_lines
from outrider.cli.tables import plain_table, show_table
from outrider.errors import require
from outrider.runtime.gc_pause import gc_paused
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
        typer.Option(help="Results: a line of JSON for each finished part. The same command goes on from there."),
    ] = Path("outrider-paper.jsonl"),
    page: Annotated[Path | None, typer.Option(help="Also write the tables here, as Markdown.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures into this directory, as SVG; --page shows them.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Texts of your own: programs as HumanEval has them or summaries (.jsonl), translations (.tsv), packed "
            "or not (.gz), or a directory of such files. Can be given several times."
        ),
    ] = None,
    prompts: Annotated[int | None, typer.Option(min=2, help="Texts of each task at most.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples of each prompt where the quality of samples is measured.")
    ] = None,
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
    require(figures is None or not figures.is_file(), f"--figures {figures} is a file; name a directory")
    check_64_bits("seed", seed)
    with gc_paused():  # torch is imported here
        from outrider.models.hub.loading import check_dtype, choose_device
    check_dtype(dtype)
    choose_device(device)
    from outrider.paper.data import read
    from outrider.paper.lab import Amount, Lab
    from outrider.paper.page import page as written
    from outrider.paper.results import PaperResults

    texts = read(data or [])
    results = PaperResults.at(out)
    lab = Lab(Amount.of(quick, seed, prompts, samples), device, dtype, texts)
    records = _run(experiments, lab, results)
    drawn = {} if figures is None else _drawn(records, figures, figures if page is None else page.parent)
    if page is not None:
        command = _command(quick=quick, only=only, seed=seed, data=len(data or []), prompts=prompts, samples=samples)
        page.write_text(written(experiments, records, command, drawn), encoding="utf-8")
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


def _drawn(records: list[dict[str, Any]], directory: Path, home: Path) -> dict[str, list[tuple[str, str]]]:
    """An SVG file for every figure; titles and addresses from ``home`` on, by experiment."""
    from outrider.report import svg
    from outrider.report.kinds.papers import chart_of
    from outrider.report.result_entry import ResultEntry

    directory.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[tuple[str, str]]] = {}
    for name in dict.fromkeys(record["experiment"] for record in records):
        for chart in chart_of([ResultEntry(r, "results") for r in records if r["experiment"] == name]):
            path = directory / f"{chart.name}.svg"
            path.write_text(svg.standalone(chart), encoding="utf-8")
            found.setdefault(name, []).append((chart.title, os.path.relpath(path, home).replace(os.sep, "/")))
    return found


def _show(experiment: Experiment, records: list[dict[str, Any]]) -> None:
    from outrider.paper.page import busy_parts, pictures
    from outrider.report.side_by_side import tables

    found = tables([row for record in records for row in record["rows"]])
    for number, (header, body) in enumerate(found):
        shown = plain_table(header, "" if number else f"{experiment.paper}, {experiment.title}")
        for cells in body:
            shown.add_row(*cells)
        show_table(answers, shown)
    for note in dict.fromkeys(note for record in records for note in record["notes"]):
        answers.print(note, markup=False, highlight=False)
    for record in records:
        for picture in pictures(record):
            answers.print(f"\n{picture.title}:", markup=False, highlight=False)
            for line in coloured_lines(picture, colours=answers.color_system is not None):
                answers.print(line, soft_wrap=True)
    if busy := busy_parts(records):
        answers.print(busy, style="yellow", markup=False, highlight=False)
    answers.print(f"Why ours differ: {experiment.differs}\n", markup=False, highlight=False)


def _command(quick: bool, only: str | None, **numbers: int | None) -> str:
    """As it may be printed: files of the user's are not named."""
    words = ["outrider paper", *(["--quick"] if quick else []), *([f"--only {only}"] if only else [])]
    words += ["--data FILE"] * (numbers.pop("data") or 0)
    return " ".join([*words, *(f"--{name} {number}" for name, number in numbers.items() if number)])
