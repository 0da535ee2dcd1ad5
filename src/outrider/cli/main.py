"""The ``outrider`` command: one thin command per file over one public function."""

from __future__ import annotations

import difflib
import gc
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import typer
from typer.core import TyperGroup

from outrider import __version__
from outrider.cli import (
    batch,
    bench,
    chat,
    demo,
    distill,
    generate,
    measure,
    models,
    paper,
    plan,
    report,
    serve,
    suffix,
    theory,
    verify,
    warm,
)
from outrider.cli.common import answers, notes
from outrider.errors import NOT_UTF8, OutriderError
from outrider.runtime.streams import ClosedOutput, open_closed_streams

UsageError: Any = typer.BadParameter.__mro__[1]
"""A wrong option or argument: typer exports no name for the base class."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut long option names at 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Speculative decoding that does not change what a model says.",
    epilog="Models and compiled code are kept in ~/.cache/outrider; OUTRIDER_CACHE names another place.",
)
app.command()(generate.generate)
app.command()(batch.batch)
app.command()(chat.chat)
app.command()(serve.serve)
app.command()(demo.demo)
app.command()(verify.verify)
app.command()(measure.measure)
app.command()(plan.plan)
app.command()(distill.distill)
app.command()(theory.theory)
app.command()(paper.paper)
app.command()(report.report)
app.command()(warm.warm)
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")
app.add_typer(suffix.app, name="suffix")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command. Errors of ours are one line and exit code 2; with --json also one JSON object on stdout."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows '?' for what it does not have
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            _follow_rank_0()
            code = app(prog_name="outrider", standalone_mode=False)
        except KeyboardInterrupt:  # typer turns those inside a command into exit code 130 itself
            code = 130
        except Exception as error:
            code = _failed(error)
        finally:
            gc.freeze()  # the process ends: one more collection would take half a second
    sys.exit(code if isinstance(code, int) else 0)


def _follow_rank_0() -> None:
    """With --tensor-parallel, of the processes of torchrun the first alone is the command; the others serve it."""
    if any(word.split("=")[0] == "--tensor-parallel" for word in sys.argv) and os.environ.get("RANK", "0") != "0":
        from outrider.models.hub import sharded

        sharded.follow()


def _failed(error: Exception) -> int:
    """Print an error -> the exit code. A bug of Outrider keeps its traceback."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, typer.Abort):
        notes.print("interrupted")
        return 130
    if type(error).__name__ == "NoArgsIsHelpError" and isinstance(error, UsageError):  # typer exports no name for this
        typer.echo(error.ctx.get_help())
        return 2
    expected = isinstance(error, (OutriderError, OSError, UsageError, UnicodeDecodeError))
    message = _message(error)
    if "--json" in sys.argv[1:] and not isinstance(sys.stdout, ClosedOutput):
        kind = "UsageError" if isinstance(error, UsageError) else type(error).__name__
        answers.out(json.dumps({"error": {"type": kind, "message": message}}), highlight=False)
    if not expected:
        raise error
    notes.print(f"error: {message}", style="red", markup=False)
    return 2


def _message(error: Exception) -> str:
    """One line: what an error says, and where to read on after a wrong option."""
    if isinstance(error, UsageError):
        _keep_near_names(error)
        command = error.ctx.command_path if error.ctx is not None else "outrider"
        text = f"{error.format_message()}{_received(error)} (see `{command} --help`)"
    elif isinstance(error, OSError) and not isinstance(error, OutriderError):
        place = f"{error.filename}: " if error.filename else ""
        text = f"{place}{error.strerror or error}"
    elif isinstance(error, UnicodeDecodeError):  # of a file that a command reads
        text = f"a file is not UTF-8 (byte 0x{error.object[error.start]:02x} at {error.start}); {NOT_UTF8}"
    else:
        text = as_flags(str(error))
    return " ".join(text.split())


@runtime_checkable
class _UnknownOption(Protocol):
    """The parser's error, with the names that it is going to suggest."""

    option_name: str
    possibilities: Sequence[str] | None


def _keep_near_names(error: Exception) -> None:
    """Of an unknown option: suggest only names like it. The parser compares the dashes, too, which all have."""
    if isinstance(error, _UnknownOption) and error.possibilities:
        found = {name.lstrip("-"): name for name in error.possibilities}
        near = difflib.get_close_matches(error.option_name.lstrip("-"), found)
        error.possibilities = [found[name] for name in near]


@runtime_checkable
class _Rejection(Protocol):
    """pydantic's error, which typer raises its own from: its message does not name the value."""

    def errors(self) -> Sequence[Mapping[str, Any]]: ...


def _received(error: Exception) -> str:
    """The value that typer has refused, where typer does not say it."""
    cause: Any = error.__cause__
    return f", got {cause.errors()[0].get('input')!r}" if isinstance(cause, _Rejection) and cause.errors() else ""


def as_flags(message: str) -> str:
    """A message of the library in the command line's words: ``width=5`` is ``--width 5``, ``top_k`` is ``--top-k``."""
    flags: dict[str, Any] = {}
    commands: list[Any] = [typer.main.get_command(app)]
    for command in commands:
        commands += command.commands.values() if isinstance(command, TyperGroup) else ()
        flags |= {option.name: option for option in command.params if f"--{_dashed(option.name)}" in option.opts}

    def flag(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        if name not in flags or (value is None and "_" not in name):
            return match[0]
        if value in ("False", "None") and flags[name].secondary_opts:
            return str(flags[name].secondary_opts[0])
        return f"--{_dashed(name)}" + ("" if value in (None, "True") else f" {value}")

    return re.sub(r"(?<![\w/.'\"-])(?P<name>[a-z]+(?:_[a-z]+)*)(?:=(?P<value>[^\s,;)]+))?(?![\w/.=])", flag, message)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    """A warning as one line, without the place in the source that Python would name."""
    notes.print("warning: " + " ".join(str(message).split()), style="yellow", markup=False)
