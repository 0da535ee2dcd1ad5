"""``outrider distill``: train a draft for a target."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.cli.distill_progress import Stages, kept, summary
from outrider.cli.measure import run_measure
from outrider.errors import BadOption, require
from outrider.trace import finite


def distill(
    target: common.TargetArgument,
    out: Annotated[Path, typer.Option(help="Where the draft goes: a new directory, or one to resume.")],
    kind: Annotated[str, typer.Option(help="model, feature, block, blockwise or eagle3.")] = "feature",
    start: Annotated[
        Path | None,
        typer.Option("--from", help="Heads: go on from the draft in this directory; its shape and tokens are kept."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="model: 256x1024x2x4 (width, inner, layers, heads); heads: inner width.")
    ] = None,
    layers: Annotated[
        str, typer.Option(help="model: start from these layers of the target, as 0,15,29 (encoder+decoder: 0,3+0).")
    ] = "",
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Text files (.txt, .jsonl); for an encoder-decoder lines of source TAB target (.tsv)."),
    ] = None,
    self_written: Annotated[
        bool, typer.Option("--self", help="Train on text the target writes itself (the default).")
    ] = False,
    prompts: Annotated[
        list[Path] | None, typer.Option(help="With --self: files of prompts, or sources, for the target to answer.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Text gathered by another run: its training/text.safetensors.")
    ] = None,
    objective: Annotated[
        str,
        typer.Option(help="kl (soft targets), tv (acceptance itself), ce (cross-entropy), or in turn: kl+kl+tv."),
    ] = "kl",
    vocab: Annotated[
        int | None,
        typer.Option(help="The most frequent tokens the draft can write (default 8192, or as --from); 0 for all."),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to train on, text repeated as needed.")] = 10_000_000,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds for writing text and training, instead of --tokens: writing ends after half of them, or at "
            "--text-tokens, and training has the rest. Loading and measuring come on top."
        ),
    ] = None,
    text_tokens: Annotated[int, typer.Option(help="Tokens of text to gather at most.")] = 2_000_000,
    block: Annotated[int, typer.Option(help="Tokens per training example.")] = 512,
    batch: Annotated[int, typer.Option(help="Examples per step.")] = 16,
    generate_batch: Annotated[int, typer.Option(help="Texts written at a time with --self.")] = 64,
    temperatures: Annotated[
        str, typer.Option(help="At which the target writes with --self, round by round in turn.")
    ] = "0,1",
    depth: Annotated[int | None, typer.Option(help="Heads: guesses trained in a row (default 5).")] = None,
    blocks: Annotated[
        int | None, typer.Option(help="Feature, block and EAGLE-3 head: layers (default 1, or as --from).")
    ] = None,
    reads: Annotated[
        str | None,
        typer.Option(
            help="Layers of the target that a head reads: feature and block beside the last, as 10,20; eagle3 all."
        ),
    ] = None,
    attention: Annotated[bool, typer.Option(help="Feature and block head: look back over the text.")] = True,
    rank: Annotated[
        int | None, typer.Option(help="Block head: numbers in the state of its corrector (default 128, or as --from).")
    ] = None,
    on_policy: Annotated[
        float, typer.Option(help="Share of the text's tokens to replace by the draft's own guesses in training.")
    ] = 0.0,
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    optimizer: Annotated[str, typer.Option(help="adamw, or muon for matrices and AdamW for the rest.")] = "adamw",
    seed: Annotated[int, typer.Option(help="Same seed, same draft (on a CPU).")] = 0,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    trust_remote_code: common.Trust = False,
    measured: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure the draft in the end, for its card.")
    ] = True,
    measure_prompts: Annotated[
        Path | None, typer.Option(help="Prompts to measure with, as `outrider measure` takes them.")
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            help="speculators: write the published head of --from in that format and train nothing; without --from "
            "train one, which takes --kind eagle3."
        ),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Train a draft for TARGET. Ctrl-C keeps what was written and learnt: the same command goes on from there.

    On a CPU the text alone can take hours: the line says how many are left, and --seconds limits them.
    """
    if export is not None:
        from outrider.training.export import check_export

        check_export(export, kind, start)
        if start is not None:
            _export(export, target, start, out, (device, dtype, trust_remote_code), as_json)
            return
    require(not (data and self_written), "--data and --self exclude each other; choose one")
    require(not (data and prompts), "--prompts are answered by the target itself: leave out --data")
    for_heads = {"--depth": depth, "--blocks": blocks, "--reads": reads}
    wrong = [option for option, value in for_heads.items() if value is not None and kind == "model"]
    require(not wrong, f"{', '.join(wrong)} means nothing to --kind model, which is no head; leave it out")
    from outrider.training.card import describe
    from outrider.training.distill import prepare
    from outrider.training.distill_plan import DistillPlan
    from outrider.training.loop import Budget

    plan = DistillPlan(
        kind=kind, size=size, layers=layers, data=tuple(map(str, data or ())),
        prompts=tuple(map(str, prompts or ())), text=None if text is None else str(text),
        vocab=vocab, start=None if start is None else str(start), text_tokens=text_tokens, block=block,
        temperatures=_temperatures(temperatures), depth=5 if depth is None else depth, blocks=blocks,
        reads=None if reads is None else _numbers(reads), attention=attention, rank=rank,
        generate_batch=generate_batch, seconds=seconds,
        budget=Budget(tokens=tokens, batch=batch, rate=rate, objective=objective, seed=seed, on_policy=on_policy,
                      optimizer=optimizer),
    )  # fmt: skip
    require(text is None or not (data or prompts), "--text is text already gathered: leave out --data and --prompts")
    require(start is None or start.is_dir(), f"--from {start} is not the directory of a draft")
    require(not out.exists() or out.is_dir(), f"--out {out} is a file; name a new directory")
    _check_files("--text", [text] if text else [], texts=False)
    for option, paths in (("--data", data), ("--prompts", prompts)):
        _check_files(option, paths or [])
    _check_files("--measure-prompts", [measure_prompts] if measure_prompts else [])
    prepare(out, plan)
    command = shlex.join(["outrider", *sys.argv[1:]])
    (out / "training" / "command.txt").write_text(command + "\n", encoding="utf-8")
    stages = Stages(notes)
    try:
        with stages:
            stages.show("loading", target)
            last = _trained(target, out, plan, (device, dtype, trust_remote_code), stages)
        card = out / "README.md"
        card.write_text(describe(target, out, plan, last, command), encoding="utf-8")
        if measured:
            stages.show("measuring")
            options = {"--prompts": measure_prompts, "--device": device, "--dtype": dtype}
            words = [w for k, v in options.items() if v not in (None, "auto") for w in (k, str(v))]
            _measure(card, target, out, [*words, *(["--trust-remote-code"] if trust_remote_code else [])])
    except KeyboardInterrupt:
        notes.print(kept(out, stages.stage, command), markup=False)
        raise typer.Exit(130) from None
    result = {
        "out": str(out),
        "steps": last.steps,
        "text_tokens": last.text_tokens,
        "loss": finite(last.loss),
        "held_out": vars(last.measured) if last.measured else None,
        "card": str(card),
    }
    answers.out(json.dumps(result) if as_json else summary(target, out, last), highlight=False)


def _check_files(option: str, paths: Sequence[Path], texts: bool = True) -> None:
    """Refuse files that are not there or hold no text, before a model is loaded and hours are spent without them."""
    from outrider.training.data import open_text, readable

    for path in paths:
        require(not path.is_dir(), f"{option} {path} is a directory; name the files in it")
        require(path.is_file(), f"{option} {path}: there is no such file; name one that is there")
        if texts:
            with open_text(path) as file, readable(path):
                found = any(line.strip() for line in file)
            require(found, f"{option} {path} is empty; name a file with some text, or leave it out")


def _export(form: str, target: str, start: Path, out: Path, how: tuple[str, str, bool], as_json: bool) -> None:
    from outrider.models.hub import loading
    from outrider.training.export import export_head

    require(not out.exists() or not any(out.iterdir()), f"--out {out} is not empty; name a new directory")
    config = export_head(loading.load(target, *how), start, out).config
    result = {"out": str(out), "format": form, "layers": config.layers, "draft_vocab_size": config.draft_vocab_size}
    told = f"{out}: a head of kind {config.name} in the {form} format for {target}, {config.draft_vocab_size:,} tokens"
    answers.out(json.dumps(result) if as_json else told, highlight=False)


def _trained(target: str, out: Path, plan: Any, how: tuple[str, str, bool], stages: Stages) -> Any:
    """The target is let go of behind it: measuring loads it again, as a user would."""
    from outrider.models.hub import loading
    from outrider.training.distill import distill as run

    return run(loading.load(target, *how), out, plan, stages)


def _measure(card: Path, target: str, draft: Path, options: list[str]) -> None:
    """The measured part of the card, by the very command that stands in it."""
    # A fixed gamma: one chosen by the clock would give other guesses, and so another n, the next time.
    words = [target, "--draft", str(draft), "--gamma", "4", "--temperature", "0", "--temperature", "1"]
    if run_measure([*words, *options, "--card", str(card), "--quiet"]) == 130:
        raise KeyboardInterrupt


def _numbers(text: str) -> tuple[int, ...]:
    parts = [p for p in text.split(",") if p]
    require(all(p.isdigit() for p in parts), f"reads must look like 10,20, got {text!r}")
    return tuple(int(p) for p in parts)


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadOption(f"temperatures must look like 0,1,1, got {text!r}") from None
