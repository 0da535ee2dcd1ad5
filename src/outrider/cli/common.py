"""Options that several commands share, and the two consoles: answers on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outrider.checks import LOADING
from outrider.cli.table_names import names_in
from outrider.errors import NOT_UTF8, BadOption, PromptError, decode_utf8, require
from outrider.runtime.gc_pause import gc_paused

DEFAULT_TARGET = "smollm2-135m"
DRAFTERS = names_in("outrider.drafters", "BUILT_IN")
ENGINES = ("auto", *names_in("outrider.models.engine.backends", "BACKENDS"), "torch")

answers = Console(soft_wrap=True, highlight=False)
notes = Console(stderr=True, soft_wrap=True, highlight=False)

MODEL = "Model: a short name, a directory, a .gguf file or a hub id."

Target = Annotated[str, typer.Option("--target", "-t", help=MODEL)]
TargetArgument = Annotated[str, typer.Argument(help=MODEL)]
Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        "-d",
        help=f"Drafter: {', '.join(DRAFTERS)}, head, suffix:DIR (see `outrider suffix`), a model named like a target, "
        "a chain 'copy>MODEL', or a class of your own: FILE.py:CLASS or MODULE:CLASS.",
    ),
]
Device = Annotated[str, typer.Option(help="Device of the models: auto, cpu, cuda, cuda:1 ...")]
Dtype = Annotated[str, typer.Option(help="Dtype of the target: auto, float32, bfloat16, float16 or float64.")]
Coupling = Annotated[
    str,
    typer.Option(
        help="Verification: maximal (the papers' rule), block (accepts as many or more), gumbel (one text per seed)."
    ),
]
Lenience = Annotated[
    float, typer.Option(help="Below 1: accept more guesses, no longer exact; 0.5 lets a token be twice as likely.")
]
DraftTemperature = Annotated[float | None, typer.Option(help="Temperature of the draft, if not the target's.")]
DraftTopK = Annotated[int | None, typer.Option(help="Top-k of the draft, if not the target's.")]
DraftTopP = Annotated[float | None, typer.Option(help="Top-p of the draft, if not the target's.")]
Width = Annotated[
    int, typer.Option(help="Tokens per sequence that a target run has room for; gamma can be up to width - 1.")
]
Gamma = Annotated[
    str,
    typer.Option(
        help="Guesses per target run: 0 to width - 1, auto (adapted while it runs), or gradient (a baseline)."
    ),
]
Tree = Annotated[
    int | None,
    typer.Option(help="Guesses of a run as a tree, at most so many, with --gamma levels at most; on a CPU by numba."),
]
Beams = Annotated[int, typer.Option(help="Beam search with this many hypotheses; 1: no beam search.")]
DraftBeams = Annotated[
    int | None, typer.Option(help="Beams of the drafter and rows of a target run: at least as many as --beams.")
]
Graphs = Annotated[
    bool | None,
    typer.Option("--graphs/--no-graphs", help="Replay steps as CUDA graphs: the same text, faster. Default on a GPU."),
]
Engine = Annotated[
    str,
    typer.Option(
        help=f"Engine of the target: {', '.join(ENGINES)}. auto: on a CPU the first of the others that supports the "
        "model, on a GPU torch."
    ),
]
Weights = Annotated[
    str, typer.Option(help="full (as saved; GGUF as it is), or int8, int4: matrices quantised to 8 or 4 bits.")
]
KvCacheDtype = Annotated[
    str,
    typer.Option(help="Dtype of the KV cache, on CPU engines other than torch: auto, float32, bfloat16 or float16."),
]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Tokens of a prompt and its text at most; longrope models need it for more than 4,096."),
]
TensorParallel = Annotated[
    int,
    typer.Option(min=1, help="Shard the target over so many processes: torchrun --nproc-per-node N -m outrider ..."),
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Maximum number of tokens to generate.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Allow Python code that comes with the model to run.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0: greedy decoding.")]
TopK = Annotated[int | None, typer.Option(help="Top-k sampling: keep the k most likely tokens.")]
TopP = Annotated[float, typer.Option(help="Top-p sampling: keep the most likely tokens up to this total probability.")]
MinP = Annotated[
    float, typer.Option(help="Keep tokens with at least this share of the most likely token's probability.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Above 1: penalises tokens of the prompt and the output.")
]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def graphs_option(asked: bool | None) -> bool | str:
    """The value of ``graphs=`` for a flag that was given or not."""
    return "auto" if asked is None else asked


def read_gamma(text: str) -> int | str:
    """The value of ``--gamma`` as the option of the same name takes it."""
    return int(text) if text.lstrip("-").isdigit() else text


def generation_options(context: typer.Context) -> dict[str, Any]:
    """Those parameters of a command that are options of ``LLM.generate``; refused here, before a model is loaded."""
    with gc_paused():  # torch is imported here
        from outrider.options import Options
    read: dict[str, Callable[[Any], Any]] = {
        "gamma": read_gamma,
        "stop": lambda texts: tuple(texts or ()),
        "early_stopping": lambda text: {"true": True, "false": False}.get(text, text),
    }
    options = {name: value for name, value in context.params.items() if name in Options.__dataclass_fields__}
    for name in read.keys() & options.keys():
        options[name] = read[name](options[name])
    check_gamma_fits(Options.parse(options).gamma, context.params.get("width"))
    return options


def check_gamma_fits(gamma: Any, width: int | None) -> None:
    """Refuse more guesses than a target run holds, before a model is loaded; None: the command has no --width."""
    from outrider.decoding.loop import WIDTH

    require(width is None or width >= 1, f"--width must be at least 1, got {width}; leave it out for {WIDTH}")
    largest, most = gamma if isinstance(gamma, int) else 0, (WIDTH if width is None else width) - 1
    remedy = f"choose at most {most}" if width is None else f"pass --width {largest + 1}"
    require(largest <= most, f"--gamma {largest} needs a width of {largest + 1}, got {most + 1}; {remedy}")


def check_drafts(names: Iterable[str]) -> None:
    """Refuse names that mean no drafter, before a model is loaded or a replica is started for them."""
    with gc_paused():
        from outrider.drafters.by_name import check_draft
    for name in names:
        check_draft(name)


def loading_options(context: typer.Context) -> dict[str, Any]:
    """Those parameters of a command that are arguments of ``outrider.load``, but for the target and its slots."""
    options = {name: value for name, value in context.params.items() if name in LOADING}
    options = {name: value for name, value in options.items() if name not in ("target", "slots")}
    return options | ({"graphs": graphs_option(options["graphs"])} if "graphs" in options else {})


def read_prompt(prompt: str | None) -> str:
    """The argument, or standard input where it is '-' or missing and something is piped in."""
    if prompt not in (None, "-"):
        return check_utf8("the prompt", str(prompt))
    if prompt is None and sys.stdin.isatty():
        raise BadOption("no prompt: give it as an argument, or '-' to read it from standard input")
    text = decode_utf8("standard input", sys.stdin.buffer.read()).rstrip("\n")
    require(text != "", "no prompt: standard input was empty; give the prompt as an argument, or pipe some text in")
    return text


def check_prompt(text: str) -> str:
    """A prompt that is given, refused where it is empty before a model is loaded for it."""
    require(text.strip("\n") != "", "the prompt is empty; give it some text", PromptError)
    return text


def check_utf8(name: str, text: str) -> str:
    """An argument of the command line. Python keeps bytes of it that are not UTF-8 as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise BadOption(f"{name} is not UTF-8 (byte 0x{byte:02x} at character {error.start}); {NOT_UTF8}") from None
    return text


def check_writable(path: Path | None, option: str) -> None:
    """Find out that a result cannot be written before working for it, not after."""
    if path is not None and path.is_dir():
        raise BadOption(f"{option} {path}: this is a directory; name a file in it")
    if path is not None and not path.resolve().parent.is_dir():
        raise BadOption(f"{option} {path}: the directory {path.resolve().parent} does not exist; make it first")
    if path is not None and not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise BadOption(f"{option} {path}: it may not be written; name another, or change its permissions")


def check_apart(**paths: Path | None) -> None:
    """That no two options (their names with underscores) are one file: the second would overwrite the first."""
    seen = dict[Path, str]()
    for name, path in paths.items():
        if path is None:
            continue
        option = f"--{name.replace('_', '-')}"
        other = seen.setdefault(path.resolve(), option)
        require(other == option, f"{other} and {option} are both {path}; name another file for one of them")
