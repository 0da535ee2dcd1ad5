"""The ``outrider`` command: one thin command per file over one public function."""

from __future__ import annotations

import gc
import os
import sys

import typer

from outrider import __version__
from outrider.cli import bench, demo, distill, generate, measure, models, theory, verify, warm
from outrider.cli.common import notes
from outrider.errors import OutriderError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Speculative decoding that does not change what a model says.",
    epilog="Models and compiled code are kept in ~/.cache/outrider; OUTRIDER_CACHE names another place.",
)
app.command()(generate.generate)
app.command()(demo.demo)
app.command()(verify.verify)
app.command()(measure.measure)
app.command()(distill.distill)
app.command()(theory.theory)
app.command()(warm.warm)
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")


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
    """Errors of ours are one line and exit code 2; Ctrl-C is exit code 130."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app()
    except OutriderError as error:
        notes.print("error: " + " ".join(str(error).split()), style="red", markup=False)
        sys.exit(2)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        place = f"{error.filename}: " if error.filename else ""
        notes.print(f"error: {place}{error.strerror or error}", style="red", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        notes.print("interrupted")
        sys.exit(130)
    finally:
        gc.freeze()  # the process ends: looking through everything for garbage once more took more than half a second
