"""``outrider generate``: text from a prompt, as it is accepted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli import common, progress
from outrider.cli.common import answers, notes
from outrider.cli.plan_option import Plan, planned
from outrider.cluster.answers import Loading, PromptBatch
from outrider.errors import require


def generate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' reads standard input.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A file of prompts, one per line; '-': standard input. A .jsonl, .ndjson or .json file has a JSON "
            'object with "prompt" or "messages", and perhaps "id" and options, in each line; so has a pipe whose first '
            "line is one. Any other is plain text. Gives one JSON line for each line: see `outrider batch`."
        ),
    ] = None,
    prompts_format: Annotated[
        str, typer.Option(help="With --prompts: text, jsonl, or auto, as --prompts says.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="With --prompts: write here, and resume where a run was interrupted."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --prompts: sequences generated at a time; if not given, up to 8, more on a GPU."
        ),
    ] = None,
    target: common.Target = common.DEFAULT_TARGET,
    draft: common.Draft = "auto",
    plan: Plan = None,
    max_new_tokens: common.MaxNewTokens = 256,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a user message through the model's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="A system message; implies --chat.")] = None,
    temperature: common.Temperature = 0.0,
    top_k: common.TopK = None,
    top_p: common.TopP = 1.0,
    min_p: common.MinP = 0.0,
    repetition_penalty: common.RepetitionPenalty = None,
    frequency_penalty: Annotated[
        float, typer.Option(help="Subtracted from a logit for each occurrence in the output.")
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from a logit if the token is in the output.")
    ] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")] = None,
    seed: common.Seed = None,
    gamma: common.Gamma = "auto",
    tree: common.Tree = None,
    coupling: common.Coupling = "maximal",
    lenience: common.Lenience = 1.0,
    draft_temperature: common.DraftTemperature = None,
    draft_top_k: common.DraftTopK = None,
    draft_top_p: common.DraftTopP = None,
    beams: common.Beams = 1,
    length_penalty: Annotated[float, typer.Option(help="Beam scores are divided by length ** this.")] = 1.0,
    early_stopping: Annotated[
        str, typer.Option(help="When beam search ends, as in transformers: true, false or never.")
    ] = "false",
    num_return: Annotated[int, typer.Option(help="Hypotheses to print, at most as many as beams.")] = 1,
    draft_beams: common.DraftBeams = None,
    width: common.Width = 9,
    exact: Annotated[bool, typer.Option(help="Constant shapes: the same bits with and without speculation.")] = True,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    kv_cache_dtype: common.KvCacheDtype = "auto",
    max_length: common.MaxLength = None,
    graphs: common.Graphs = None,
    trust_remote_code: common.Trust = False,
    tensor_parallel: common.TensorParallel = 1,
    trace: Annotated[
        Path | None, typer.Option(help="Write the trace here, as JSON lines; `outrider report` draws it.")
    ] = None,
    show_trace: Annotated[bool, typer.Option("--show-trace", help="Print the coloured trace afterwards.")] = False,
    stats: Annotated[bool, typer.Option(help="Print statistics on stderr.")] = True,
    as_json: common.Json = False,
) -> None:
    """Generate text. The text goes to stdout, statistics to stderr."""
    for name, given in (("--system", [system or ""]), ("--stop", stop or [])):
        for value in given:
            common.check_utf8(name, value)
    text = _checked_prompt(
        prompt,
        prompts,
        {"--out": out, "--slots": slots, "--prompts-format": prompts_format},
        {"--trace": trace, "--show-trace": show_trace},
    )
    set_by_plan = planned(context, plan, slots or 1, temperature)
    context.params.update({name: str(value) if name == "gamma" else value for name, value in set_by_plan.items()})
    options = common.generation_options(context)
    require(beams == 1 or not show_trace, "--show-trace shows one text as it grows; leave it out with --beams")
    common.check_writable(trace, "--trace")

    loading = Loading(target, common.loading_options(context))
    if prompts is not None:
        from outrider.cli import batch, prompt_file

        common.check_writable(out, "--out")
        lines = prompt_file.read_lines(prompts, system, chat or system is not None, prompts_format, target)
        settings = {**loading.decides, "exact": exact}
        batch.run(PromptBatch(lines, options, settings, out, slots), batch.answering(loading))
        return
    with progress.loading(target):
        llm = loading.load(None)
    messages = [{"role": "system", "content": system}] if system is not None else []
    asked: Any = text
    if chat or system is not None:
        asked = llm.chat_prompt([*messages, {"role": "user", "content": text}])
    output = _searched(llm, asked, options) if beams > 1 else _streamed(llm, asked, options, as_json)
    _show(output, as_json)
    from outrider.cli.render import print_trace, stats_table

    if show_trace:
        print_trace(notes, output.trace, llm.show)
    if stats and not as_json and output.trace.records:
        notes.print(stats_table(output.stats, output))
    if trace is not None:
        output.trace.save(trace, llm.show)
    if output.finish_reason == "interrupted":
        raise typer.Exit(130)


def _checked_prompt(
    prompt: str | None, prompts: Path | None, batch: dict[str, Any], single: dict[str, Any]
) -> str | None:
    """The prompt to use, or None for a file of them. Options of the other kind would have no effect: refused."""
    unused = [
        name for name, value in (batch if prompts is None else single).items() if value not in (None, False, "auto")
    ]
    if prompts is None:
        require(not unused, f"{', '.join(unused)} means something with --prompts FILE only; leave it out")
        return common.check_prompt(common.read_prompt(prompt))
    require(not unused, f"{', '.join(unused)} is of a single text; leave it out with --prompts")
    require(prompt is None, f"a prompt, {prompt!r}, and --prompts {prompts}: give one of the two")
    return None


def _searched(llm: Any, asked: Any, options: dict[str, Any]) -> Any:
    with notes.status("searching"):
        return llm.generate(asked, **options)


def _streamed(llm: Any, asked: Any, options: dict[str, Any], as_json: bool) -> Any:
    """Generate, and write the text as it is accepted. After Ctrl-C the output is what there was by then."""
    from outrider.output import Collected

    collected = Collected()
    ids = llm.encode(asked)
    shown = not as_json and progress.on_terminal()
    try:
        for chunk in progress.watched(llm.stream(ids, **options), len(ids), shown):
            collected.add(chunk)
            if not as_json:
                sys.stdout.write(chunk.text)  # not through a console, which would rewrite tabs
                sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    return collected.output()


def _show(output: Any, as_json: bool) -> None:
    """What has not been written yet: JSON, the hypotheses of a beam search, or the end of the last line."""
    from outrider.trace import strict_json

    if as_json:
        answers.out(strict_json(output.to_json()), highlight=False)
    elif output.hypotheses:  # best first; several of them each behind its score
        for beam in output.hypotheses:
            score = f"{beam.score:.4f}\t" if len(output.hypotheses) > 1 else ""
            sys.stdout.write(f"{score}{beam.text}\n")
    else:
        sys.stdout.write("\n")
