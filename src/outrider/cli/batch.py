"""``outrider generate --prompts FILE``: one JSON line out for each line in; an interrupted run goes on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from outrider.cli.common import check_writable, notes
from outrider.cli.progress import loading
from outrider.cli.prompt_file import PromptLine
from outrider.cli.results import results
from outrider.errors import BadOption, NumericalError
from outrider.runtime import timer

MOST_SLOTS = 8
WINDOW = 32
"""Lines per slot in one call of ``stream``, which keeps the trace of all of them until it ends."""

Answer = tuple[PromptLine, dict[str, Any]]
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class PromptBatch:
    """A run over the lines of a file."""

    lines: Sequence[PromptLine]
    options: Mapping[str, Any]  # of generate, for every line
    settings: Mapping[str, Any]  # what else a text follows from: the target, its dtype
    out: Path | None = None
    slots: int | None = None

    def keys(self) -> dict[int, str]:
        """What each line's text follows from: a file is never continued with other prompts or options."""
        shared = {**self.options, **self.settings, "gamma": None}  # gamma is free to be chosen anew
        return {
            line.index: hashlib.sha256(
                json.dumps([shared, line.prompt], sort_keys=True, default=str).encode()
            ).hexdigest()[:16]
            for line in self.lines
        }


def run(batch: PromptBatch, target: str, load: Callable[[int], Any]) -> None:
    """Answer every line that is not in the file already, and say how it went. Exit code 1 if a line failed."""
    check_writable(batch.out, "--out")
    keys, total = batch.keys(), len(batch.lines)
    sink = results(batch.out, keys)
    todo = [line for line in batch.lines if line.index not in sink.done]
    if len(todo) < total:
        notes.print(f"{total - len(todo)} of {total} lines are in {batch.out} already: kept", markup=False)
    began, failed, tokens = timer.now(), 0, 0
    slots = min(MOST_SLOTS, total) if batch.slots is None else batch.slots
    try:
        llm = None
        if any(line.error is None for line in todo):
            with loading(target):
                llm = load(slots)
        with _bar(total, total - len(todo)) as advance:
            for line, record in _answers(llm, todo, batch.options, _seeds(batch, keys), slots * WINDOW, advance):
                sink.write(line.index, {"index": line.index, "id": line.id, "key": keys[line.index], **record})
                failed += record["error"] is not None
                tokens += len(record.get("tokens", ()))
                advance(1, 0)
    except KeyboardInterrupt:
        sink.close()
        notes.print(f"interrupted: {len(sink.done)} of {total} lines are written; {sink.remedy}", markup=False)
        raise typer.Exit(130) from None
    sink.close(complete=True)
    seconds = timer.now() - began
    notes.print(f"{len(todo) - failed} texts, {tokens:,} tokens, {seconds:.1f} s", markup=False)
    if failed:
        notes.print(f"{failed} of {total} lines failed; their 'error' says why", style="red", markup=False)
        raise typer.Exit(1)


def _seeds(batch: PromptBatch, keys: Mapping[int, str]) -> dict[int, int] | None:
    """A seed for each line, whatever was generated before: a repeated prompt gets the next one."""
    seed = batch.options["seed"]
    if seed is None:
        return None
    seen: Counter[str] = Counter()
    seeds = {}
    for line in batch.lines:
        seeds[line.index] = seed + seen[keys[line.index]]
        seen[keys[line.index]] += 1
    return seeds


def _answers(
    llm: Any,
    lines: Sequence[PromptLine],
    options: Mapping[str, Any],
    seeds: dict[int, int] | None,
    most: int,
    advance: Advance,
) -> Iterator[Answer]:
    """Lines as they finish; those that cannot be used at once."""
    for start in range(0, len(lines), most):
        ready: list[tuple[PromptLine, list[int]]] = []
        for line in lines[start : start + most]:
            try:
                ready.append((line, _token_ids(llm, line)))
            except BadOption as error:
                yield line, {"error": str(error)}
        if ready:
            several = None if seeds is None else [seeds[line.index] for line, _ in ready]
            yield from _texts(llm, ready, {**options, "seed": several}, advance)


def _token_ids(llm: Any, line: PromptLine) -> list[int]:
    if line.error is not None:
        raise BadOption(line.error)
    return list(llm.encode(llm.chat_prompt(line.prompt) if line.chat else line.prompt))


def _texts(
    llm: Any, ready: list[tuple[PromptLine, list[int]]], options: Mapping[str, Any], advance: Advance
) -> Iterator[Answer]:
    from outrider.output import Collected

    if options["beams"] > 1:
        for line, ids in ready:
            output = llm.generate(ids, **options)
            advance(0, len(output.tokens))
            yield line, output.to_json()
        return
    collected = [Collected(place) for place in range(len(ready))]
    try:
        for chunk in llm.stream([ids for _, ids in ready], **options):
            collected[chunk.index].add(chunk)
            advance(0, len(chunk.tokens))
            if chunk.finish_reason is not None:
                yield ready[chunk.index][0], collected[chunk.index].output().to_json()
    except NumericalError:  # raised where every text ended in an error, each of which has been told
        pass


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
