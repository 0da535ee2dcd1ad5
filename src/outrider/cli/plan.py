"""``outrider plan``: whether and how to speculate, predicted from a few measurements and then tried."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.cli.measure import repeated_command
from outrider.cli.plan_option import given
from outrider.cli.plan_tables import show
from outrider.errors import BadOption, require
from outrider.models.settings import has_chat_template
from outrider.runtime.files import write_whole
from outrider.trace import strict_json

EXPORTS = "vllm, sglang, llama.cpp or transformers"


def plan(
    context: typer.Context,
    target: Annotated[str | None, typer.Argument(help=common.MODEL)] = None,
    drafts: Annotated[
        str, typer.Option(help="Drafters to compare, as --draft of generate names them, separated by commas.")
    ] = "copy,auto",
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file with prompt and task fields; else twelve prompts of six tasks.")
    ] = None,
    per_task: Annotated[int | None, typer.Option(help="Prompts of each task at most, evenly spaced.")] = None,
    batch: Annotated[str, typer.Option(help="Requests at a time, separated by commas: 1,8,64.")] = "1",
    gamma: Annotated[
        str | None, typer.Option(help="Numbers of guesses to predict, separated by commas; default: 1 to width - 1.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(help="Gammas to run for every drafter, too, beside what was predicted for them: 1,3,5,7."),
    ] = None,
    temperature: common.Temperature = 0.0,
    coupling: common.Coupling = "maximal",
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    max_new_tokens: common.MaxNewTokens = 64,
    turns: Annotated[int, typer.Option(help="Timed turns of every width and batch; medians count.")] = 5,
    repeats: Annotated[int, typer.Option(help="Timed runs of each prompt; medians count.")] = 1,
    width: common.Width = 9,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    graphs: common.Graphs = None,
    trust_remote_code: common.Trust = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan here, for --plan of generate and serve.")] = None,
    shown: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: show or export what an earlier --out has written.")
    ] = None,
    export: Annotated[
        str | None, typer.Option(help=f"Also write the configuration of another program: {EXPORTS}.")
    ] = None,
    export_to: Annotated[Path | None, typer.Option(help="With --export: write it here instead of printing it.")] = None,
    as_json: common.Json = False,
) -> None:
    """Measure acceptance and the costs of guesses and runs; predict the speed-up of each draft, gamma and batch.

    Recommends one of them, or not to speculate, and runs it beside plain decoding: predicted, measured, and the error.
    Ctrl-C keeps what was measured.
    """
    from outrider.bench.plan.export import WRITERS

    require(
        export is None or export in WRITERS, f"--export must be one of {', '.join(WRITERS)}, got {export!r}; choose one"
    )
    require(export_to is None or export is not None, f"--export-to {export_to} needs --export; name a program")
    common.check_writable(export_to, "--export-to")
    common.check_writable(out, "--out")
    common.check_apart(**{"from": shown, "out": out, "export_to": export_to})
    batches = numbers("--batch", batch)
    content = _earlier(context, shown) if shown is not None else _measured(context, batches)
    if not as_json:
        _show(content, shown)
    if out is not None:
        write_whole(out, strict_json(content, indent=1) + "\n")
    first = batches[0] if shown is None or given(context, "batch") else 1
    text, refused = None, None
    try:
        text = None if export is None else _exported(content, shown or out, export, first)
    except BadOption as error:  # not before what was measured is shown
        refused = error
    if as_json:
        answers.out(strict_json(content | ({} if text is None else {"export": text})), highlight=False)
    if refused is not None:
        raise refused
    if text is not None and export_to is not None:
        export_to.write_text(text, encoding="utf-8")
    elif text is not None and not as_json:
        answers.print(f"\n{text}", end="", markup=False)
    if content["interrupted"] and shown is None:
        kept = f"kept in {out}" if out is not None else "lost without --out FILE"
        done = f"{content['prompts_done']} of {content['prompts_wanted']} prompts"
        notes.print(f"interrupted after {done}: what was measured is shown, and {kept}", markup=False)
        raise typer.Exit(130)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    require(len(words) > 0, f"{option} is empty; give numbers separated by commas, as {option} 1,8")
    for word in words:
        good = word.isascii() and word.isdigit() and len(word) < 10 and int(word) >= 1
        require(
            good, f"{option} must be whole numbers from 1 on, separated by commas, got {word[:20]!r} in {text[:60]!r}"
        )
    return tuple(map(int, words))


def _earlier(context: typer.Context, path: Path) -> dict[str, Any]:
    from outrider.bench.plan.plan_file import PlanFile

    kept = ("context", "shown", "export", "export_to", "as_json", "batch")
    unused = [name for name in context.params if name not in kept and given(context, name)]
    flags = ", ".join("TARGET" if name == "target" else f"--{name.replace('_', '-')}" for name in unused)
    has, it = ("has", "it") if len(unused) == 1 else ("have", "them")
    require(not unused, f"{flags} {has} no meaning with --from, which measures nothing; leave {it} out")
    return dict(PlanFile.read(path).content)


def _show(content: dict[str, Any], path: Path | None) -> None:
    try:
        show(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if path is None:
            raise
        raise BadOption(
            f"plan {path}: an entry is not as `outrider plan --out` writes it ({type(error).__name__}: {error}); "
            "run it again"
        ) from error


def _exported(content: dict[str, Any], path: Path | None, program: str, batch: int) -> str:
    from outrider.bench.plan.export import export
    from outrider.bench.plan.plan_file import PlanFile

    return export(PlanFile(path or Path("this plan"), content), program, batch)


def _measured(context: typer.Context, batches: tuple[int, ...]) -> dict[str, Any]:
    """Check every option, load the models, and measure, with a bar of progress."""
    from outrider.bench.plan.settings import PlanSettings
    from outrider.bench.prompts import read
    from outrider.options import Options

    asked = context.params
    if asked["target"] is None:
        raise BadOption("no target: name a model, or an earlier plan with --from FILE")
    names = [name.strip() for name in asked["drafts"].split(",") if name.strip()]
    require(len(names) > 0, "--drafts is empty; name at least one, as --drafts copy,auto")
    require(len(set(names)) == len(names), f"--drafts: each can be named once, got {', '.join(names)}")
    same = [name for name in names if name in ("none", "plain")]
    require(not same, f"--drafts {','.join(same)} is what drafts are compared with; leave it out")
    common.check_drafts(names)
    width = asked["width"]
    every = range(1, width)
    gammas = tuple(every) if asked["gamma"] is None else numbers("--gamma", asked["gamma"])
    require(len(gammas) > 0, f"--width {width} has no room for guesses; pass --width 2 or more")
    common.check_gamma_fits(max(gammas), width)
    options = {name: asked[name] for name in ("max_new_tokens", "temperature", "coupling", "seed")}
    Options.parse(options)
    checks = () if asked["check"] is None else numbers("--check", asked["check"])
    settings = PlanSettings(gammas, batches, checks, asked["turns"], asked["repeats"], options)
    # A context holds what was typed: some versions of typer keep a path there as text.
    given_prompts = None if asked["prompts"] is None else read(Path(asked["prompts"]), asked["per_task"])
    import outrider

    with notes.status(f"loading {asked['target']}"):
        loading = common.loading_options(context)
        first = outrider.load(asked["target"], slots=1, **loading | {"draft": names[0]})
        engines = {names[0]: first}
        engines |= {name: first.with_draft(name, asked["trust_remote_code"]) for name in names[1:]}
    tasks = given_prompts or read(None, asked["per_task"], sources=first.target.model.encoder_decoder)
    return _run(engines, tasks, settings, loading) | {"command": repeated_command(context)}


def _run(engines: dict[str, Any], tasks: dict[str, Any], settings: Any, loading: dict[str, Any]) -> dict[str, Any]:
    """The content of a plan file, but for the command."""
    from outrider.bench.machine import Neighbours
    from outrider.bench.plan.forecast import sentence
    from outrider.bench.plan.place import described, device_name, files_fingerprint
    from outrider.bench.plan.plan_file import LOADING_KEYS, VERSION
    from outrider.bench.plan.run import PlanRun
    from outrider.certificate.conditions import conditions

    llm = next(iter(engines.values()))
    chat = has_chat_template(llm.tokenizer)
    ids = {
        task: [llm.chat_prompt([{"role": "user", "content": p}]) if chat else llm.encode(p) for p in texts]
        for task, texts in tasks.items()
    }
    neighbours = Neighbours(lambda: sum(os.times()[:2]))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        shown = bar.add_task("warming up", total=1.0)
        made = PlanRun(
            engines, ids, settings, lambda what, share: bar.update(shown, description=what, completed=share)
        ).run()
    content = {
        "plan": VERSION,
        "outrider": version("outrider"),
        "target": llm.target.name,
        "fingerprint": files_fingerprint(llm.target.name),
        "encoder_decoder": llm.target.model.encoder_decoder,
        "device": device_name(loading["device"]),
        "loading": {name: loading[name] for name in LOADING_KEYS},
        "width": llm.width,
        "options": dict(settings.options),
        "drafters": {name: described(name, engine.drafter, llm.target.name) for name, engine in engines.items()},
        "conditions": conditions(llm, 1),
        **made.to_json(),
        "sentence": sentence(made.recommendations),
        "others_cores": neighbours.cores(),
    }
    return dict(json.loads(strict_json(content)))  # shown as it is shown from a file: no number that JSON has not
