"""``outrider bench cpu``: Outrider and other engines on this CPU with the same weights, prompts and token counts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.cli.tables import plain_table, show_table
from outrider.errors import require
from outrider.trace import strict_json

Row = dict[str, Any]

EXPLAINED = (
    "decode: tokens per second behind the first token, totals over totals (95 % interval over prompts); quartiles: of "
    "the prompts; prefill: tokens of prompts per second until the first token; first: seconds to it; whole: tokens per "
    "second with the prompt's time; floor: share of the speed at which reading the weights once a token would be all; "
    "same text: prompts whose text is the engine's own plain text, token for token; ours x it: how many times as fast "
    "Outrider's speculative decoding is; as ours: tokens until the text leaves Outrider's plain text, median"
)


def cpu(
    context: typer.Context,
    target: common.TargetArgument = common.DEFAULT_TARGET,
    engines: Annotated[
        str | None,
        typer.Option(
            help="outrider, transformers, vllm, openvino, llamacpp, separated by commas; all but the last with "
            ":float32, :bfloat16 or :float16 behind them if they are to run in that precision (outrider:int8 and "
            "outrider:int4, too). By default all that are installed."
        ),
    ] = None,
    draft: common.Draft = "auto",
    dtype: Annotated[str, typer.Option(help="For all engines: auto, float32, bfloat16 or float16.")] = "auto",
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file with prompt and task fields, or Spec-Bench's question file.")
    ] = None,
    per_task: Annotated[int | None, typer.Option(help="Prompts of each task at most, evenly spaced.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens of every text, whatever it says.")] = 128,
    temperature: Annotated[list[float] | None, typer.Option(help="0 (the default) is greedy; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of each prompt; medians count.")] = 1,
    threads: Annotated[int | None, typer.Option(help="Threads of every engine; default: the cores available.")] = None,
    peer_python: Annotated[
        list[str] | None, typer.Option(help="ENGINE=PYTHON, for an engine in another environment; may be repeated.")
    ] = None,
    peer_model: Annotated[
        list[str] | None, typer.Option(help="ENGINE=PATH, for an engine that reads another format; may be repeated.")
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option(help="Also prefill and decode behind prompts of so many tokens: 200,800,4000,8000."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers here, after every prompt.")] = None,
    as_json: common.Json = False,
) -> None:
    """Plain and speculative decoding by Outrider and by other engines, beside the limit of the memory bandwidth.

    Every engine runs in a process of its own, with the same number of threads, and is suspended while another one is
    measured. Ctrl-C ends the run and keeps what was measured. Exit code 1: an engine failed.
    """
    from outrider.bench.cpu import Bench, CpuPlan
    from outrider.bench.peers import by_engine, installed
    from outrider.bench.prompts import read
    from outrider.cli.measure import repeated_command
    from outrider.models.hub.checkpoint import look
    from outrider.models.hub.loading import DTYPES

    common.check_writable(out, "--out")
    require(dtype == "auto" or dtype in DTYPES, f"dtype must be auto, {', '.join(DTYPES)}; got {dtype!r}")
    common.check_drafts([draft])
    pythons = by_engine(peer_python or [], "--peer-python")
    models = by_engine(peer_model or [], "--peer-model")
    chosen = installed(pythons) if engines is None else [name for name in engines.split(",") if name.strip()]
    plan = CpuPlan(
        target, tuple(chosen), tokens, tuple(temperature or [0.0]), repeats, draft, dtype, threads, pythons, models,
        out, _lengths(contexts),
    )  # fmt: skip
    given = None if prompts is None else read(prompts, per_task, spec_bench=True)
    with notes.status(f"looking at {target}"):
        checkpoint = look(target)
    tasks = given or read(None, per_task, sources=checkpoint.encoder_decoder)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        shown = bar.add_task("starting", total=1.0)
        bench = Bench(plan, checkpoint, tasks, repeated_command(context))
        report = bench.run(lambda what, share: bar.update(shown, description=what, completed=share))
    if as_json:
        answers.out(strict_json(report), highlight=False)
    else:
        show(report)
    if report["left_out"]:
        notes.print(
            f"{report['left_out']} prompts were left out: with their texts they are longer than the model reads"
        )
    if report["contexts_left_out"]:
        lengths = ", ".join(map(str, report["contexts_left_out"]))
        notes.print(f"contexts left out: with {tokens} tokens behind them the model does not read {lengths}")
    for name, reason in report["failed"].items():
        notes.print(f"{name} failed: {reason}", style="red", markup=False)
    if report["interrupted"]:
        notes.print("interrupted: these are the prompts that were finished")
        raise typer.Exit(130)
    if report["failed"]:
        raise typer.Exit(1)


def show(report: dict[str, Any]) -> None:
    speed = report.get("bytes_per_second", {}).get("median")
    others = report.get("other_cores")
    answers.print(
        f"{report['cpu']}, {report['threads']} threads, {report['target']}, {report['prompts']} prompts of "
        f"{report['tokens']} tokens"
        + (f"; reads {speed / 1e9:.1f} GB/s" if speed else "")
        + (f"; others used {others:.2f} cores" if others is not None else "")
    )
    for name, about in report["engines"].items():
        peak = f", peak {about['peak_bytes'] / 1e6:.0f} MB" if about.get("peak_bytes") else ""
        answers.print(f"{name}: {about['version']}, {about['dtype']}{_note(about)}{peak}", style="dim", markup=False)
    for temperature in dict.fromkeys(row["temperature"] for row in report["rows"]):
        found = [row for row in report["rows"] if row["temperature"] == temperature]
        overall = [row for row in found if row["task"] == "all"]
        show_table(answers, _speeds(overall, f"\ntemperature {temperature:g}: speed"))
        show_table(answers, _ratios(overall, f"\ntemperature {temperature:g}: ratios"))
        show_table(answers, _by_task(found, f"\ntemperature {temperature:g}: tokens per second by task"))
    if report.get("contexts"):
        show_table(answers, _contexts(report["contexts"], "\nprefill: tokens per second", "prefill_tokens_per_second"))
        show_table(answers, _contexts(report["contexts"], "\nprefill: seconds to the first token", "prefill_seconds"))
        show_table(answers, _contexts(report["contexts"], "\ndecoding: tokens per second", "tokens_per_second"))
    answers.print(EXPLAINED, style="dim")


def _lengths(text: str | None) -> tuple[int, ...]:
    """``200,4000``."""
    words = [] if text is None else [word.strip() for word in text.split(",") if word.strip()]
    require(all(word.isdecimal() for word in words), f"--contexts {text!r}: write lengths in tokens, as 200,4000")
    return tuple(int(word) for word in words)


def _contexts(rows: list[Row], title: str, figure: str) -> Table:
    """A column for every length of a prompt."""
    from outrider.bench.card import number

    ways, lengths = (list(dict.fromkeys(row[key] for row in rows)) for key in ("way", "context"))
    found = {(row["way"], row["context"]): row for row in rows}
    table = _table(title, ("engine", *(f"{length:,}" for length in lengths)))
    digits = 2 if figure == "prefill_seconds" else 1
    for way in ways:
        table.add_row(way, *(number(found.get((way, length), {}).get(figure), digits) for length in lengths))
    return table


def _note(about: dict[str, Any]) -> str:
    return f", {about['note']}" if about["note"] else ""


def _speeds(rows: list[Row], title: str) -> Table:
    from outrider.bench.card import number, with_interval

    table = _table(title, ("engine", "decode", "quartiles", "prefill", "first", "whole", "floor"))
    for r in rows:
        low, high = r["quartiles"]
        table.add_row(
            r["way"], with_interval(r["tokens_per_second"], r["interval"], 1), f"{number(low, 1)}-{number(high, 1)}",
            number(r["prefill_tokens_per_second"], 0), number(r["first_seconds"]),
            number(r["whole_tokens_per_second"], 1),
            "-" if r["floor_share"] is None else f"{100 * r['floor_share']:.0f} %",
        )  # fmt: skip
    return table


def _ratios(rows: list[Row], title: str) -> Table:
    from outrider.bench.card import number, with_interval

    table = _table(title, ("engine", "x own plain", "same text", "ours x it", "our plain x it", "as ours"))
    for r in rows:
        table.add_row(
            r["way"], with_interval(r["over_plain"], r["over_plain_interval"]),
            "-" if r["same_as_plain"] is None else f"{r['same_as_plain']}/{r['compared']}",
            with_interval(r["ours_over"], r["ours_over_interval"]), number(r["our_plain_over"]),
            number(r["agreement"], 0),
        )  # fmt: skip
    return table


def _by_task(rows: list[Row], title: str) -> Table:
    """A column for every task; below the speeds what ours is against its own plain decoding and the best of others."""
    from outrider.bench.card import number
    from outrider.bench.cpu_rows import OURS

    ways, tasks = (list(dict.fromkeys(row[key] for row in rows)) for key in ("way", "task"))
    found = {(row["way"], row["task"]): row for row in rows}
    table = _table(title, ("engine", *tasks))
    for way in ways:
        table.add_row(way, *(number(found.get((way, t), {}).get("tokens_per_second"), 1) for t in tasks))
    ours, others = OURS.partition(" ")[0], []
    for task in tasks:
        ratios = [row["ours_over"] for row in rows if row["task"] == task and not row["way"].startswith(ours)]
        others.append(min((ratio for ratio in ratios if ratio is not None), default=None))
    table.add_row("ours x own plain", *(number(found.get((OURS, t), {}).get("over_plain")) for t in tasks))
    table.add_row("ours x best other", *map(number, others))
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    return plain_table(columns, title)


def start(
    target: common.TargetArgument = common.DEFAULT_TARGET,
    draft: common.Draft = "auto",
    dtype: common.Dtype = "auto",
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens to generate; memory is read at the end.")] = 64,
    repeats: Annotated[int, typer.Option(help="Processes to start; medians count.")] = 5,
    as_json: common.Json = False,
) -> None:
    """Seconds and resident memory from the start of a process to its first token, beside the size of the weights."""
    from outrider.bench.cpu import SIZES
    from outrider.bench.machine import cpu_name
    from outrider.bench.start import start as measured
    from outrider.models.hub.checkpoint import look

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        shown = bar.add_task("looking at the model", total=1.0)
        numbers = look(target).numbers()
        report = measured(
            target, draft, dtype, tokens, repeats,
            lambda what, share: bar.update(shown, description=what, completed=share),
        )  # fmt: skip
    report |= {"target": target, "cpu": cpu_name(), "bytes": numbers * SIZES.get(report["weights"], 4.0)}
    if as_json:
        answers.out(strict_json(report), highlight=False)
    else:
        show_table(answers, _starts(report))
    if report["repeats"] < repeats:
        notes.print(f"interrupted: {report['repeats']} of {repeats} processes were finished")
        raise typer.Exit(130)


def _starts(report: dict[str, Any]) -> Table:
    size, shown = report["bytes"], ("resident", "private", "peak", "beyond_libraries")
    title = f"{report['cpu']}, {report['target']} by {report['engine']}: weights of {size / 1e6:.0f} MB; sizes in MB"
    columns = ("until", "seconds", "least-most", "resident", "private", "peak", "less libraries", "/ weights")
    table = _table(title, columns)
    for stage in report["stages"]:
        seconds = stage["seconds"]
        sizes = [f"{stage[key] / 1e6:.0f}" if key in stage else "-" for key in shown]
        table.add_row(
            stage["stage"], f"{seconds['median']:.2f}", f"{seconds['min']:.2f}-{seconds['max']:.2f}", *sizes,
            f"{stage['beyond_libraries'] / size:.2f}" if "beyond_libraries" in stage else "-",
        )  # fmt: skip
    return table
