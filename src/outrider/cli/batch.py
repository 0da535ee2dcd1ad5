"""``outrider batch`` and ``outrider generate --prompts``: one JSON line out for each line in, even after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from outrider.cli import common
from outrider.cli.common import check_writable, notes
from outrider.cli.progress import loading as loading_shown
from outrider.cli.results import results
from outrider.cluster.answers import Advance, Answer, Loading, PromptBatch, PromptLine, answers
from outrider.errors import require
from outrider.report.values import counted
from outrider.runtime import timer

MOST_SLOTS = 8
MOST_NAMED = 5
"""Lines that failed of which the summary gives the numbers."""

Answering = Callable[[Sequence[PromptLine], int], Callable[[Advance], Iterator[Answer]]]
"""Makes ready to answer lines with so many slots -> what gives their records, telling of its progress."""


def batch(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help='A file of JSON lines: {"prompt": ...} or {"messages": [...]}, and perhaps "id" and options such as '
            '"max_new_tokens", "temperature", "seed" and "stop"; or requests of OpenAI\'s batch files. '
            "'-': standard input.",
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="One JSON line for each line of IN. The same command resumes it.")
    ],
    target: common.TargetArgument = common.DEFAULT_TARGET,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run on a Ray cluster (pip install '.[ray]'): the same texts.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --ray: models that run at a time; default: as many as fit.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Sequences generated at a time, by each model; default: 8 at most.")
    ] = None,
    draft: common.Draft = "auto",
    max_new_tokens: common.MaxNewTokens = 256,
    system: Annotated[str | None, typer.Option(help="A system message for conversations that have none.")] = None,
    temperature: common.Temperature = 0.0,
    top_k: common.TopK = None,
    top_p: common.TopP = 1.0,
    min_p: common.MinP = 0.0,
    seed: common.Seed = None,
    gamma: common.Gamma = "auto",
    coupling: common.Coupling = "maximal",
    width: common.Width = 9,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    kv_cache_dtype: common.KvCacheDtype = "auto",
    max_length: common.MaxLength = None,
    graphs: common.Graphs = None,
    trust_remote_code: common.Trust = False,
    tensor_parallel: common.TensorParallel = 1,
) -> None:
    """Answer the lines of a file, offline. Options hold for lines that have none of their own.

    Each text is written to OUT when it ends, and OUT is put in order at the end. After Ctrl-C, a kill or a power cut
    the same command keeps what is there and goes on. A line that fails has an "error" and does not stop the others.
    """
    from outrider.cli import prompt_file

    check_writable(out, "OUT")
    options = common.generation_options(context)
    common.check_drafts([draft])
    if system is not None:
        common.check_utf8("--system", system)
    loading = Loading(target, common.loading_options(context))
    lines = prompt_file.read_lines(source, system, prompts_format="jsonl", target=target, called="IN")
    settings = {**loading.decides, "exact": True}
    run(PromptBatch(lines, options, settings, out, slots), answering(loading, ray, workers))


def answering(loading: Loading, ray: bool = False, workers: int | None = None) -> Answering:
    """One model in this process, or several on a cluster."""
    if ray:
        from outrider.cluster.ray_batch import OnRay

        parallel = loading.options["tensor_parallel"]
        require(parallel == 1, f"--tensor-parallel {parallel} is of one model under torchrun; leave it out with --ray")
        return OnRay(loading, workers)
    require(workers is None, f"--workers {workers} means something with --ray only; leave it out")

    def here(lines: Sequence[PromptLine], slots: int) -> Callable[[Advance], Iterator[Answer]]:
        llm = None
        if any(line.error is None for line in lines):
            with loading_shown(loading.target):
                llm = loading.load(slots)
        return lambda advance: answers(llm, lines, slots, advance)

    return here


def run(batch: PromptBatch, answering: Answering) -> None:
    """Answer every line that is not in the file already, and say how it went. Exit code 1 if a line failed."""
    keys, total = batch.keys(), len(batch.lines)
    sink = results(batch.out, keys)
    todo = [line for line in batch.complete(keys) if line.index not in sink.done]
    if len(todo) < total:
        notes.print(f"{total - len(todo)} of {total} lines are in {batch.out} already: kept", markup=False)
    began, failed, tokens = timer.now(), list[int](), 0
    slots = min(MOST_SLOTS, total) if batch.slots is None else batch.slots
    try:
        answered = answering(todo, slots)
        with _bar(total, total - len(todo)) as advance:
            for line, record in answered(advance):
                sink.write(line.index, {"index": line.index, "id": line.id, "key": keys[line.index], **record})
                failed += [line.index] if record["error"] is not None else []
                tokens += len(record.get("tokens", ()))
                advance(1, 0)
    except KeyboardInterrupt:
        sink.close()
        notes.print(f"interrupted: {len(sink.done)} of {total} lines are written; {sink.remedy}", markup=False)
        raise typer.Exit(130) from None
    sink.close(complete=True)
    made, seconds = len(todo) - len(failed), timer.now() - began
    notes.print(f"{counted(made, 'text')}, {counted(tokens, 'token')}, {seconds:.1f} s", markup=False)
    if failed:
        notes.print(_failures(sorted(failed), total, batch.out), style="red", markup=False)
        raise typer.Exit(1)


def _failures(failed: Sequence[int], total: int, out: Path | None) -> str:
    """How many lines failed, which, and where to read why: lines of input and output have the same numbers."""
    first = ", ".join(str(index + 1) for index in failed[:MOST_NAMED])
    rest = f" and {len(failed) - MOST_NAMED:,} more" if len(failed) > MOST_NAMED else ""
    place = "standard output" if out is None else str(out)
    which = f"line {first}" if len(failed) == 1 else f"lines {first}{rest}"
    return f'{len(failed)} of {counted(total, "line")} failed ({which}): the key "error" there in {place} says why'


@contextmanager
def _bar(total: int, done: int) -> Iterator[Advance]:
    """Lines, tokens per second and the time left."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    began, tokens = timer.now(), 0
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task("lines", total=total, completed=done, speed="")

        def advance(lines: int, more: int) -> None:
            nonlocal tokens
            tokens += more
            speed = tokens / max(timer.now() - began, 1e-9)
            bar.update(task, advance=lines, speed=f"{speed:.0f} tokens per second")

        yield advance
