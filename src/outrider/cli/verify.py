"""``outrider verify``: a certificate that speculation is exact, on the user's own models and machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.errors import BadOption, ModelNotFound, require


def verify(
    target: Annotated[str, typer.Argument(help="Model: a short name, a directory, a .gguf file or a hub id.")],
    draft: common.Draft = "auto",
    prompts: Annotated[
        Path | None, typer.Option(help="A file of prompts: one per line, or .jsonl with a prompt field.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Tokens per prompt and check.")] = 24,
    gammas: Annotated[str, typer.Option(help="Guesses per run to try, as 1,4,8 or 1-8.")] = "1,4,8",
    seeds: Annotated[int, typer.Option(min=0, help="Seeds for temperature 1.")] = 1,
    samples: Annotated[int, typer.Option(help="Draws per law test.")] = 2048,
    coupling: Annotated[
        str, typer.Option(help="The coupling whose law is tested: maximal, block or gumbel.")
    ] = "maximal",
    lenience: Annotated[float, typer.Option(help="1, or refused: lenience is inexact by design.")] = 1.0,
    width: common.Width = 9,
    slots: Annotated[int, typer.Option(min=1, help="Row slots that run together.")] = 1,
    exact: Annotated[bool, typer.Option(help="Constant shapes, as generate uses them.")] = True,
    chat: Annotated[bool, typer.Option(help="Ask by the chat template where there is one.")] = True,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    trust_remote_code: common.Trust = False,
    out: Annotated[Path | None, typer.Option(help="Also write the certificate here, as JSON.")] = None,
    as_json: common.Json = False,
) -> None:
    """Check bit identity, the law of a coupling and row invariance. Exit code 1 if anything fails."""
    common.check_writable(out, "--out")
    plan = replace(
        _plan(prompts, max_new_tokens, gammas, seeds, samples, chat, width), coupling=coupling, lenience=lenience
    )
    import outrider
    from outrider.certificate import Certificate, certify
    from outrider.certificate.run import conditions

    with notes.status(f"loading {target}"):
        llm = outrider.load(
            target, draft, device, dtype, width=width, slots=slots, exact=exact, trust_remote_code=trust_remote_code
        )
    certificate = Certificate(target, llm.drafter.name, conditions(llm))
    interrupted = False
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        try:
            certify(llm, plan, certificate, lambda what, share: bar.update(task, description=what, completed=share))
        except KeyboardInterrupt:
            interrupted = True
    if out is not None:
        out.write_text(json.dumps(certificate.to_json(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        answers.out(json.dumps(certificate.to_json()), highlight=False)
    else:
        _show(certificate)
    if interrupted:
        notes.print("interrupted: the certificate holds what was finished")
        raise typer.Exit(130)
    if not certificate.passed:
        raise typer.Exit(1)


def _plan(prompts: Path | None, tokens: int, gammas: str, seeds: int, samples: int, chat: bool, width: int) -> Any:
    from outrider.certificate.run import PROMPTS, Plan

    chosen = PROMPTS if prompts is None else tuple(_read_prompts(prompts))
    parsed = _gammas(gammas)
    require(
        any(g < width for g in parsed), f"gammas {gammas} need a width above {width}; pass --width {min(parsed) + 1}"
    )
    return Plan(chosen, tokens, parsed, tuple(range(seeds)), samples, chat=chat)


def _gammas(text: str) -> tuple[int, ...]:
    try:
        if "-" in text:
            low, high = (int(part) for part in text.split("-"))
            return tuple(range(low, high + 1))
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadOption(f"gammas must look like 1,4,8 or 1-8, got {text!r}") from None


def _read_prompts(path: Path) -> list[str]:
    require(path.is_file(), f"prompts file {path} does not exist", ModelNotFound)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if path.suffix != ".jsonl":
        return lines
    try:
        return [str(json.loads(line)["prompt"]) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise BadOption(f"prompts file {path} must hold one JSON object with a 'prompt' per line ({error})") from None


def _show(certificate: Any) -> None:
    for title, results in (
        ("Temperature 0", certificate.greedy),
        ("Temperature 1, Gumbel coupling", certificate.gumbel),
    ):
        table = Table(title=f"Bit identity: {title}", title_justify="left")
        for column in ("drafter", "gamma", "seed", "tokens", "mismatches", "alpha", "tokens/run", ""):
            table.add_column(column, justify="left" if column == "drafter" else "right")
        for r in results:
            seed = "-" if r.seed is None else str(r.seed)
            table.add_row(
                r.drafter, str(r.gamma), seed, str(r.tokens), str(r.mismatches), f"{r.alpha:.2f}",
                f"{r.tokens_per_run:.2f}", _mark(r),
            )  # fmt: skip
        answers.print(table)
        for r in results:
            if r.first is not None:
                answers.print(f"  first difference with {r.drafter}, gamma {r.gamma}: {r.first}")
    table = Table(title="Law of the sampled text (two tokens, top-k 4)", title_justify="left")
    for column in ("draft", "rule", "samples", "p-value", "finds distances from", ""):
        table.add_column(column)
    for r in certificate.law:
        table.add_row(r.drafter, r.verifier, str(r.samples), f"{r.p_value:.2g}", f"{r.detects:.3f}", _mark(r))
    answers.print(table)
    table = Table(title="Row invariance of the kernels", title_justify="left")
    for column in ("a row with", "logit rows", "changed", ""):
        table.add_column(column)
    for r in certificate.invariance:
        table.add_row(r.change, str(r.rows), str(r.changed), _mark(r) if r.required else "not promised")
    answers.print(table)
    answers.print(", ".join(f"{k} {v}" for k, v in certificate.conditions.items()), style="dim")
    failed = any(not r.passed for r in certificate.results)
    verdict = "FAILED" if failed else "PASSED" if certificate.finished else "UNFINISHED"
    answers.print(
        f"{verdict}: {certificate.target} with {certificate.drafter}: {certificate.mismatches} of {certificate.tokens} "
        f"tokens differ; {certificate.seconds:.0f} s"
    )


def _mark(result: Any) -> str:
    return "ok" if result.passed else "FAILED"
