"""``outrider verify``: a certificate that speculation is exact, on the user's own models and machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from outrider.cli import common
from outrider.cli.certificate import show_certificate
from outrider.cli.common import answers, notes
from outrider.cli.prompt_file import is_jsonl, read_bytes
from outrider.errors import BadOption, decode_utf8, require
from outrider.trace import strict_json


def verify(
    context: typer.Context,
    target: common.TargetArgument,
    draft: common.Draft = "auto",
    prompts: Annotated[Path | None, typer.Option(help="A file of prompts, as for generate --prompts.")] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", "-n", help="Tokens per prompt, drafter and gamma; 16 if not given."),
    ] = None,
    tokens_total: Annotated[
        int | None, typer.Option(help="Compare at least so many tokens in all, instead of -n.")
    ] = None,
    gammas: Annotated[str, typer.Option(help="Guesses per run to try, as 1,4,8 or 1-8.")] = "1,4,8",
    seeds: Annotated[int, typer.Option(min=0, help="Seeds for temperature 1; 0 leaves that part out.")] = 3,
    samples: Annotated[int, typer.Option(help="Draws per distribution test of the rule; 0 leaves it out.")] = 50_000,
    engine_samples: Annotated[
        int, typer.Option(help="Draws of the distribution test by runs of the model; 0 leaves it out.")
    ] = 256,
    coupling: Annotated[
        str, typer.Option(help="The coupling whose distribution is tested: maximal, block or gumbel.")
    ] = "maximal",
    lenience: Annotated[float, typer.Option(help="1, or refused: lenience is inexact by design.")] = 1.0,
    width: common.Width = 9,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences that run together, any number; if not given, one per prompt up to 8."),
    ] = None,
    exact: Annotated[bool, typer.Option(help="Constant shapes, as generate uses them.")] = True,
    chat: Annotated[bool, typer.Option(help="Ask by the chat template where there is one.")] = True,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    graphs: common.Graphs = None,
    trust_remote_code: common.Trust = False,
    out: Annotated[Path | None, typer.Option(help="Also write the certificate here, as JSON.")] = None,
    as_json: common.Json = False,
) -> None:
    """Check bit identity, the distribution under a coupling and row invariance.

    Exit code 1 if anything fails, 3 if nothing does but a distribution test had no power.
    """
    common.check_writable(out, "--out")
    import outrider
    from outrider.certificate import Certificate, Plan, certify

    plan = Plan(
        **_prompts(prompts), max_new_tokens=max_new_tokens, tokens_total=tokens_total, gammas=_gammas(gammas, width),
        seeds=tuple(range(seeds)), samples=samples, engine_samples=engine_samples, chat=chat,
        coupling=coupling, lenience=lenience,
    )  # fmt: skip
    with notes.status(f"loading {target}"):
        llm = outrider.load(target, slots=slots, **common.loading_options(context))
    certificate = Certificate(target, llm.drafter.name)
    interrupted = False
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        try:
            certify(llm, plan, certificate, lambda what, share: bar.update(task, description=what, completed=share))
        except KeyboardInterrupt:
            interrupted = True
    if out is not None:
        out.write_text(strict_json(certificate.to_json(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        answers.out(strict_json(certificate.to_json()), highlight=False)
    else:
        show_certificate(answers, certificate)
    if interrupted:
        notes.print("interrupted: the certificate holds what was finished")
    code = {"failed": 1, "inconclusive": 3}.get(certificate.verdict, 130 if interrupted else 0)
    if code:
        raise typer.Exit(code)


def _prompts(path: Path | None) -> dict[str, Any]:
    return {} if path is None else {"prompts": tuple(_read_prompts(path))}


def _gammas(text: str, width: int) -> tuple[int, ...]:
    try:
        if "-" in text:
            low, high = (int(part) for part in text.split("-"))
            parsed = tuple(range(low, high + 1))
        else:
            parsed = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadOption(f"gammas must look like 1,4,8 or 1-8, got {text!r}") from None
    require(len(parsed) > 0, f"gammas must go up, as 1-8; got {text!r}")
    largest = max(parsed)
    require(largest < width, f"gammas {text} need a width of {largest + 1}, got {width}; pass --width {largest + 1}")
    return parsed


def _read_prompts(path: Path) -> list[str]:
    lines = [line for line in decode_utf8(f"prompts file {path}", read_bytes(path)).splitlines() if line.strip()]
    require(len(lines) > 0, f"prompts file {path} is empty; give it a prompt per line")
    if not is_jsonl(path, lines[0].encode(), "auto"):
        return lines
    return [_prompt(f"prompts file {path}, prompt {number}", line) for number, line in enumerate(lines, 1)]


def _prompt(where: str, line: str) -> str:
    """The text of a line of JSON."""
    try:
        given = json.loads(line)
    except ValueError as error:
        raise BadOption(f"{where}: the line is no JSON ({error})") from None
    prompt = given.get("prompt") if isinstance(given, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise BadOption(f"{where}: verify needs a JSON object with a text as 'prompt', got {line:.80}")
    return prompt
