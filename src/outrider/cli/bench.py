"""``outrider bench``: speed of this machine. On a GPU: the cost of a step, and whether the bits are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from outrider.cli import bench_cpu, bench_serve, common
from outrider.cli.common import answers, notes
from outrider.cli.tables import show_table
from outrider.errors import BadOption
from outrider.report import plots, terminal
from outrider.report.gpu import figures
from outrider.trace import strict_json

app = typer.Typer(no_args_is_help=True, help="Benchmarks of this machine.")
app.command()(bench_cpu.cpu)
app.command()(bench_cpu.start)
app.command()(bench_serve.serve)
app.command()(bench_serve.capacity)


@app.callback()
def _group() -> None:
    """Benchmarks of this machine."""


@app.command()
def gpu(
    size: Annotated[str, typer.Option(help="8b (an 8B target with a 1B draft), or tiny, which a CPU can run.")] = "8b",
    device: Annotated[str, typer.Option(help="cuda, cuda:1 ..., or cpu with --size tiny.")] = "cuda",
    section: Annotated[
        list[str] | None,
        typer.Option(
            help="latency, decoder, identity, rows, curves, load, pair, micro, profile or compile; may be repeated."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of each of eight rows for the test of identity.")] = 2500,
    pair: Annotated[str, typer.Option(help="The trained Llama that section pair inflates.")] = common.DEFAULT_TARGET,
    pair_draft: Annotated[Path | None, typer.Option(help="A head trained for it; else the one shipped.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A .jsonl file of prompts for the pair, with a task each; else twelve of six tasks."),
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds after which no further section is begun.")] = float("inf"),
    out: Annotated[Path | None, typer.Option(help="Also write the numbers here, after every section.")] = None,
    shown: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: show what an earlier --out has written.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the curves as a PNG file into this directory.")] = None,
    as_json: common.Json = False,
) -> None:
    """Plain and speculative steps, ours and transformers' in one process, beside what the memory bus allows.

    Weights are random and shapes are Llama's, but for section pair: there a trained model is inflated.
    Exit code 1: a section failed. Numbers off their bars are no failure.
    """
    from outrider.bench.gpu_table import failed, lines

    if plot is not None:
        plots.check_available()
    interrupted = False
    if shown is not None:
        results = _read(shown)
    else:
        from outrider.bench.gpu_run import GpuPlan, run

        common.check_writable(out, "--out")
        sections = tuple(section) if section else ("latency", "identity", "curves")
        report = run(GpuPlan(size, device, sections, budget, out, tokens, pair, pair_draft, prompts))
        results, interrupted = report.results, report.interrupted
    drawn = figures(results)
    if as_json:
        answers.out(strict_json(results, default=str), highlight=False)
    else:
        show_table(answers, _table(lines(results), results))
        for panel in (panel for figure in drawn for panel in figure.panels):
            answers.print()
            answers.print(terminal.plot(panel))
    if interrupted:
        notes.print("interrupted: these are the sections that were finished")
        raise typer.Exit(130)
    if plot is not None and not drawn:
        raise BadOption("--plot: no curve was measured; ask for --section curves or load")
    for path in plots.save(drawn, plot) if plot is not None else ():
        notes.print(f"wrote {path}", markup=False)
    if failed(results):
        raise typer.Exit(1)


def _read(path: Path) -> dict[str, Any]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        results["machine"]["device"]
    except OSError as error:
        raise BadOption(f"--from {path}: cannot be read ({error.strerror}); name a file that --out wrote") from None
    except (ValueError, KeyError, TypeError):
        raise BadOption(f"--from {path}: not a result of this command; name a file that --out wrote") from None
    return dict(results)


def _table(lines: list[Any], results: dict[str, Any]) -> Table:
    machine = results["machine"]
    title = f"{machine['device']}, torch {machine['torch']}, transformers {machine['transformers']}"
    table = Table(title=title, title_justify="left")
    for column in ("what", "measured", "bar", "met"):
        table.add_column(column, justify="right" if column == "measured" else "left")
    for line in lines:
        table.add_row(line.what, line.measured, line.bar, {True: "yes", False: "no", None: ""}[line.met])
    return table
