"""``outrider measure``: does speculation pay, on these models, these prompts, this machine?"""

from __future__ import annotations

import shlex
import sys
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.cli.measure_tables import csv_of, show
from outrider.cli.plan_option import Plan, planned
from outrider.errors import require
from outrider.models.settings import has_chat_template
from outrider.trace import strict_json

ALL = "all"
"""As --draft: every draft there is for the target."""


def measure(
    context: typer.Context,
    target: common.TargetArgument,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            "-d",
            help="As in generate; may be repeated to compare drafts in one run. all: every one there is.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file with prompt and task fields (Spec-Bench's too).")
    ] = None,
    per_task: Annotated[int | None, typer.Option(help="Prompts of each task at most, evenly spaced.")] = None,
    max_new_tokens: common.MaxNewTokens = 64,
    temperature: Annotated[list[float] | None, typer.Option(help="0 (the default) is greedy; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of each prompt; medians count.")] = 1,
    coupling: common.Coupling = "maximal",
    lenience: common.Lenience = 1.0,
    draft_temperature: common.DraftTemperature = None,
    draft_top_k: common.DraftTopK = None,
    draft_top_p: common.DraftTopP = None,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    gamma: Annotated[
        list[str] | None,
        typer.Option(help="As in generate (auto if not given); may be repeated to compare several in one run."),
    ] = None,
    plan: Plan = None,
    width: common.Width = 9,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    graphs: common.Graphs = None,
    trust_remote_code: common.Trust = False,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers here, as JSON.")] = None,
    card: Annotated[Path | None, typer.Option(help="Also write them into this model card.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing: with --card or --out.")] = False,
    as_json: common.Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV, with a header.")] = False,
) -> None:
    """Plain and speculative decoding side by side: acceptance, cost, speed-up with its interval, per task.

    Ctrl-C ends it with the prompts that were finished.
    """
    from outrider.bench.measure import MeasureSettings
    from outrider.bench.prompts import read
    from outrider.options import Options

    set_by_plan = planned(context, plan, 1, temperature[0] if temperature else 0.0)
    draft = draft or [set_by_plan.get("draft", "auto")]
    gamma = gamma or [str(set_by_plan.get("gamma", "auto"))]
    width = context.params["width"] = set_by_plan.get("width", width)
    drafts = draft
    require(len(set(drafts)) == len(drafts), f"each --draft can be named once, got {', '.join(drafts)}")
    common.check_writable(out, "--out")
    common.check_writable(card, "--card")
    require(not (as_json and as_csv), "--json and --csv exclude each other; choose one")
    options = {
        "max_new_tokens": max_new_tokens, "seed": seed, "coupling": coupling, "lenience": lenience,
        "draft_temperature": draft_temperature, "draft_top_k": draft_top_k,
        "draft_top_p": draft_top_p,
    }  # fmt: skip
    gammas = tuple(map(common.read_gamma, gamma))
    settings = MeasureSettings(tuple(temperature or [0.0]), repeats, options, gammas)
    for t, g in product(settings.temperatures, gammas):
        common.check_gamma_fits(Options.parse({**options, "temperature": t, "gamma": g}).gamma, width)
    common.check_drafts(name for name in drafts if name != ALL)
    given = None if prompts is None else read(prompts, per_task)
    import outrider

    with notes.status(f"loading {target}"):
        some = "none" if drafts[0] == ALL else drafts[0]
        first = outrider.load(target, slots=1, **common.loading_options(context) | {"draft": some})
        drafts = _listed(drafts, first)
        engines = {name: first if name == some else first.with_draft(name, trust_remote_code) for name in drafts}
    tasks = given or read(None, per_task, sources=first.target.model.encoder_decoder)
    report = run(engines, tasks, settings, repeated_command(context))
    if out is not None:
        out.write_text(strict_json(report, indent=2) + "\n", encoding="utf-8")
    if card is not None:
        from outrider.bench.card import section, update

        update(card, section(report))
    if as_json:
        answers.out(strict_json(report), highlight=False)
    elif as_csv:
        sys.stdout.write(csv_of(report))
    elif not quiet:
        show(report)
    if report["interrupted"]:
        notes.print(f"interrupted: {report['prompts_done']} of {report['prompts_wanted']} prompts were finished")
        raise typer.Exit(130)


def _listed(drafts: list[str], llm: Any) -> list[str]:
    """``all`` stands for every draft there is for this target; those that were named as well keep their place."""
    if ALL not in drafts:
        return drafts
    from outrider.drafters.by_name import drafts_for

    at = drafts.index(ALL)
    more = [name for name in drafts_for(llm.target) if name not in drafts]
    return [*drafts[:at], *more, *drafts[at + 1 :]]


def run_measure(words: list[str]) -> int:
    """Run ``outrider measure`` with these words -> its exit code. For commands that end with a measurement."""
    program = typer.Typer()
    program.callback()(lambda: None)  # more than one command, as in the program itself: its name stays a word
    program.command()(measure)
    code = typer.main.get_command(program).main(["measure", *words], prog_name="outrider", standalone_mode=False)
    return int(code or 0)


def run(engines: dict[str, Any], tasks: dict[str, Any], settings: Any, command: str) -> dict[str, Any]:
    """Measure, with a bar of progress -> the report: everything that is printed, written or put into a card."""
    from outrider.bench.measure import measure as measured
    from outrider.certificate.conditions import conditions

    llm = next(iter(engines.values()))
    chat = has_chat_template(llm.tokenizer)
    asked: dict[str, Any] = {
        task: [llm.chat_prompt([{"role": "user", "content": p}]) if chat else p for p in texts]
        for task, texts in tasks.items()
    }
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        shown = bar.add_task("warming up", total=1.0)
        figures = measured(
            engines, asked, settings, lambda what, share: bar.update(shown, description=what, completed=share)
        )
    return {
        "target": llm.target.name,
        "drafters": {name: engine.drafter.name for name, engine in engines.items()},
        "options": dict(settings.options),
        "conditions": conditions(llm, 1),
        "command": command,
        "rows": [r.to_json() for r in figures.rows],
        "auto_over_best": [r.to_json() for r in figures.choices],
        "prompts_done": figures.done,
        "prompts_wanted": figures.wanted,
        "interrupted": figures.interrupted,
    }


def repeated_command(context: typer.Context) -> str:
    """The command line that gives these numbers again: every option that was given, but not where they go."""
    names: list[str] = []  # of the command and the groups it is in; the outermost context is the program
    here: Any = context
    while here.parent is not None:
        names, here = [str(here.info_name), *names], here.parent
    words = ["outrider", *names, str(context.params["target"])]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if (
            option.name in ("target", "out", "card", "quiet", "as_json", "as_csv")
            or value in (None, [], ())
            or value == option.default
        ):
            continue
        for each in value if isinstance(value, (list, tuple)) else [value]:
            words += [option.opts[0]] if each is True else [option.opts[0], str(each)]
    return shlex.join(words)
