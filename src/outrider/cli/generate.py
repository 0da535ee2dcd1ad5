"""``outrider generate``: text from a prompt, as it is accepted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.errors import require
from outrider.starting import uncollected


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' reads standard input.")] = None,
    target: common.Target = common.DEFAULT_TARGET,
    draft: common.Draft = "auto",
    max_new_tokens: common.MaxNewTokens = 256,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask it as a user's message, by the model's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="A system message; implies --chat.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that make up this mass.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens at least this likely, relative to the likeliest.")] = 0.0,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: less repetition (prompt and output).")
    ] = None,
    frequency_penalty: Annotated[float, typer.Option(help="Per earlier occurrence in the output.")] = 0.0,
    presence_penalty: Annotated[float, typer.Option(help="For any earlier occurrence in the output.")] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    gamma: common.Gamma = "auto",
    coupling: common.Coupling = "maximal",
    lenience: common.Lenience = 1.0,
    draft_temperature: common.DraftTemperature = None,
    draft_top_k: common.DraftTopK = None,
    draft_top_p: common.DraftTopP = None,
    beams: common.Beams = 1,
    length_penalty: Annotated[float, typer.Option(help="Beam scores are divided by length ** this.")] = 1.0,
    early_stopping: Annotated[
        str, typer.Option(help="Of beam search, as in transformers: true, false or never.")
    ] = "false",
    num_return: Annotated[int, typer.Option(help="Hypotheses to print, at most as many as beams.")] = 1,
    draft_beams: common.DraftBeams = None,
    width: common.Width = 9,
    exact: Annotated[bool, typer.Option(help="Constant shapes: the same bits with and without speculation.")] = True,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    graphs: common.Graphs = None,
    trust_remote_code: common.Trust = False,
    trace: Annotated[Path | None, typer.Option(help="Write the trace here, as JSON lines.")] = None,
    show_trace: Annotated[bool, typer.Option("--show-trace", help="Print the coloured trace afterwards.")] = False,
    stats: Annotated[bool, typer.Option(help="Print statistics on stderr.")] = True,
    as_json: common.Json = False,
) -> None:
    """Generate text. The text goes to stdout, statistics to stderr."""
    import outrider
    from outrider.cli.render import print_trace, stats_table

    text = common.read_prompt(prompt)
    for name, given in (("--system", [system or ""]), ("--stop", stop or [])):
        for value in given:
            common.check_utf8(name, value)
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "stop": stop or (),
        "seed": seed,
        "gamma": common.read_gamma(gamma),
        "coupling": coupling,
        "lenience": lenience,
        "draft_temperature": draft_temperature,
        "draft_top_k": draft_top_k,
        "draft_top_p": draft_top_p,
        "beams": beams,
        "length_penalty": length_penalty,
        "early_stopping": {"true": True, "false": False}.get(early_stopping, early_stopping),
        "num_return": num_return,
        "draft_beams": draft_beams,
    }
    require(beams == 1 or not show_trace, "--show-trace shows one text as it grows; leave it out with --beams")
    with uncollected():  # torch is imported here
        check_options(options, text)
    common.check_writable(trace, "--trace")
    llm = outrider.load(
        target,
        draft,
        device,
        dtype,
        width=width,
        exact=exact,
        graphs=common.graphs_option(graphs),
        engine=engine,
        weights=weights,
        trust_remote_code=trust_remote_code,
    )
    asked: Any = text
    if chat or system is not None:
        messages = [{"role": "system", "content": system}] if system is not None else []
        asked = llm.chat_prompt([*messages, {"role": "user", "content": text}])
    if beams > 1:
        answer(llm.generate(asked, **options), as_json, stats, trace)
        return
    collected = Collected()
    try:
        for chunk in llm.stream(asked, **options):
            collected.add(chunk)
            if not as_json:
                sys.stdout.write(chunk.text)  # not through a console, which would rewrite tabs
                sys.stdout.flush()
    except KeyboardInterrupt:
        collected.finish_reason = "interrupted"
    if as_json:
        answers.out(json.dumps(collected.to_json()), highlight=False)
    else:
        sys.stdout.write("\n")
    if show_trace and collected.trace is not None:
        print_trace(notes, collected.trace, llm.show)
    if stats and not as_json and collected.trace is not None:
        notes.print(stats_table(collected.stats))
    if trace is not None and collected.trace is not None:
        collected.trace.save(trace)
    if collected.finish_reason == "interrupted":
        raise typer.Exit(130)


def answer(output: Any, as_json: bool, stats: bool, trace: Path | None) -> None:
    """The hypotheses of a beam search, best first; with several of them, each behind its score."""
    from outrider.cli.render import stats_table

    if as_json:
        answers.out(json.dumps(output.to_json()), highlight=False)
    else:
        for beam in output.hypotheses:
            score = f"{beam.score:.4f}\t" if len(output.hypotheses) > 1 else ""
            sys.stdout.write(f"{score}{beam.text}\n")
        if stats:
            notes.print(stats_table(output.stats))
    if trace is not None:
        output.trace.save(trace)


def check_options(options: dict[str, Any], prompt: str) -> None:
    """Refuse bad options before a model is loaded for them."""
    from outrider.errors import PromptError, require
    from outrider.options import Options

    require(prompt.strip("\n") != "", "the prompt is empty; give it some text", PromptError)
    Options.parse(options)


class Collected:
    """Everything a stream has given so far, complete or not: Ctrl-C loses nothing."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.finish_reason = "interrupted"
        self.trace: Any = None

    def add(self, chunk: Any) -> None:
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.trace = chunk.trace
        self.finish_reason = chunk.finish_reason or self.finish_reason

    @property
    def stats(self) -> Any:
        from outrider.trace import Trace, summarise

        return summarise(self.trace if self.trace is not None else Trace())

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "stats": self.stats.to_json(),
        }
