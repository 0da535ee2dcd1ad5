"""The command line with things a person gets wrong: one line, exit code 2, nothing done before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import outrider
from outrider.cli.main import main
from outrider.cli.render import print_trace
from outrider.errors import BadOption, PromptError
from outrider.trace import Record, Trace


def run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> tuple[Any, str]:
    """The whole program in this process -> its exit code and what it said on stderr."""
    monkeypatch.setattr(sys, "argv", ["outrider", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


def test_a_directory_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A trace that could not be written was a traceback after the whole generation."""
    words = ["generate", "The man", "--target", "gpt-small", "-n", "2", "--trace", str(tmp_path)]
    code, said = run(words, monkeypatch, capsys)
    assert code == 2 and "name a file in it" in " ".join(said.split()) and "Traceback" not in said


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Catches a traceback where the operating system says no: here a file stands where a directory should be made."""
    (tmp_path / "file").write_text("mine")
    code, said = run(["distill", "gpt-small", "--out", str(tmp_path / "file" / "draft")], monkeypatch, capsys)
    assert code == 2 and "error:" in said and "Traceback" not in said


def test_the_trace_is_shown_beside_json(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """--show-trace was ignored with --json."""
    words = ["generate", "The man", "--target", "gpt-small", "-n", "3", "--gamma", "2", "--json", "--show-trace"]
    monkeypatch.setattr(sys, "argv", ["outrider", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    caught = capsys.readouterr()
    assert ended.value.code in (0, None) and caught.out.startswith("{") and "rejected guess" in caught.err


def test_a_trace_without_colours_has_marks() -> None:
    """Catches a trace in a file in which kept and rejected guesses cannot be told apart."""
    record = Record(0, 5, (1, 2, 3), 1, 9, (0.5, 0.5, 0.5), 2)
    whole = Record(0, 7, (4,), 1, 8, (0.5,), 2)
    console = Console(record=True, width=80, no_color=True, color_system=None, quiet=False)
    with console.capture() as shown:
        print_trace(console, Trace("d", "maximal", True, [record, whole]), lambda ids: "".join(map(str, ids)))
    assert "1[-2-]{+9+}" in shown.get() and "4{8}" in shown.get()


def test_what_is_no_prompt_and_no_slot() -> None:
    """Bytes were taken for token ids, and no slots at all were accepted."""
    llm = outrider.load("gpt-small")
    with pytest.raises(PromptError, match="a text or token ids"):
        llm.generate(b"abc")
    with pytest.raises(BadOption, match="slots must be None or a whole number of at least 1, got 0"):
        outrider.load("gpt-small", slots=0)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_closed_stdout() -> None:
    """`>&-` was a traceback: Python has no sys.stdout then. What cannot be written is an error, as in any program."""
    done = run_python(
        "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'outrider', '--version'])"
    )
    assert done.returncode == 2 and done.stderr.startswith("error: standard output is closed; send it somewhere")
    assert done.stderr.count("\n") == 1


def test_an_interrupt_while_the_command_is_imported() -> None:
    """Ctrl-C in the first half second was a traceback."""
    done = run_python(
        "import builtins, sys\n"
        "real = builtins.__import__\n"
        "def slow(name, *given, **options):\n"
        "    if name == 'outrider.cli.main':\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *given, **options)\n"
        "from outrider.__main__ import main\n"
        "builtins.__import__ = slow\n"
        "main()"
    )
    assert (done.returncode, done.stderr) == (130, "")
