"""Errors and warnings of the command line: one line on stderr, with --json also one object on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from command import Command
from outrider.cli import common, main
from outrider.cli.table_names import names_in
from outrider.drafters import BUILT_IN
from outrider.models.engine.backends import BACKENDS

WRONG: dict[str, tuple[list[str], str, str]] = {
    "an option's value": (["theory", "--alpha", "3"], "BadOption", "alpha must be between 0 and 1"),
    "no such option": (["generate", "x", "--temprature", "1"], "UsageError", "--temperature"),
    "no width": (["generate", "x", "--width", "0"], "BadOption", "--width must be at least 1, got 0"),
    "no number": (["generate", "x", "--top-k", "many"], "UsageError", "'--top-k'"),
    "the value is shown": (["generate", "x", "--top-k", "many"], "UsageError", "'many'"),
    "a number out of range": (["generate", "--prompts", "p", "--slots", "-3"], "UsageError", "-3"),
    "an argument is missing": (["verify"], "UsageError", "Missing argument"),
    "no such command": (["generat", "x"], "UsageError", "Did you mean 'generate'"),
    "no such model": (["models", "path", "nothing-here"], "ModelNotFound", "known: smollm2-135m"),
    "no prompt": (["generate"], "BadOption", "standard input was empty"),
    "a place that cannot be": (["generate", "x", "--trace", "/nowhere/t.jsonl"], "BadOption", "make it first"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_is_json_where_json_was_asked_for(name: str, outrider: Command) -> None:
    """stdout was empty with --json, so that a program that reads it failed on the error instead of reporting it."""
    words, kind, says = WRONG[name]
    said = outrider(*words, "--json")
    error = json.loads(said.out)["error"]
    assert said.code == 2 and error["type"] == kind and says in error["message"]
    plain = outrider(*words)
    assert plain.code == 2 and plain.out == "" and says in plain.err
    assert plain.err.startswith("error: ") and plain.err.count("\n") == 1, "one line, not a box"


@pytest.mark.parametrize(
    ("word", "near"), [("--bogus", []), ("--zzz", []), ("--temprature", ["--temperature"]), ("--sede", ["--seed"])]
)
def test_only_near_options_are_suggested(word: str, near: list[str], outrider: Command) -> None:
    """--out was suggested for --bogus: the two dashes, which all options have, were compared, too."""
    said = outrider("generate", "x", word, "1").err
    assert ("Possible options" in said) == bool(near) and all(name in said for name in near)
    assert "--out" not in said


def test_the_operating_systems_errors_are_json_too(tmp_path: Path, outrider: Command) -> None:
    (tmp_path / "file").write_text("mine")
    said = outrider("distill", "gpt-small", "--out", str(tmp_path / "file" / "draft"), "--json")
    assert said.code == 2 and "file" in json.loads(said.out)["error"]["message"]


NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(
    "words",
    [
        ["generate", NOT_UTF8],
        ["generate", "x", "--system", NOT_UTF8],
        ["generate", "x", "--stop", NOT_UTF8],
        ["demo", NOT_UTF8],
    ],
    ids=str,
)
def test_arguments_that_are_not_utf8(words: list[str], outrider: Command) -> None:
    """A prompt in Latin-1 was a traceback of fifty lines out of the tokenizer."""
    said = outrider(*words, "--target", "gpt-small")
    assert said.code == 2 and "not UTF-8 (byte 0xe9 at character 3); convert it first" in said.err


def test_input_that_is_not_utf8(tmp_path: Path, outrider: Command) -> None:
    """Standard input and files of prompts in Latin-1 were tracebacks."""
    said = outrider("generate", "-", "--target", "gpt-small", stdin=b"caf\xe9")
    assert said.code == 2 and "standard input is not UTF-8 (byte 0xe9 at 3); convert it first" in said.err
    (tmp_path / "prompts.jsonl").write_bytes(b'{"prompt": "caf\xe9"}\n')
    for command in ("verify", "measure"):
        said = outrider(command, "gpt-small", "--prompts", str(tmp_path / "prompts.jsonl"))
        assert said.code == 2 and "is not UTF-8 (byte 0xe9 at 15); convert it first" in said.err


def test_a_byte_order_mark_is_no_text(outrider: Command) -> None:
    """Files written on Windows begin with one; the model was shown it."""
    marked = outrider("generate", "-t", "gpt-small", "-n", "3", "--json", stdin=b"\xef\xbb\xbfThe man")
    plain = outrider("generate", "-t", "gpt-small", "-n", "3", "--json", stdin=b"The man")
    assert json.loads(marked.out)["tokens"] == json.loads(plain.out)["tokens"]


def test_a_warning_is_one_line(monkeypatch: pytest.MonkeyPatch, outrider: Command) -> None:
    """Warnings came as Python prints them: the path of a file of the package, a line number and the line."""

    def warns(*_: Any, **__: Any) -> None:
        warnings.warn("this is slow;\n   do that", stacklevel=1)

    monkeypatch.setattr(common, "check_writable", warns)
    said = outrider("generate", "The man", "-t", "gpt-small", "-n", "2")
    assert said.code == 0 and said.err.splitlines()[0] == "warning: this is slow; do that"


def test_a_terminal_without_utf8() -> None:
    """An answer with an accent was a UnicodeEncodeError where Python writes ASCII."""
    code = (
        "import sys; from outrider.cli import main as m; sys.argv = ['outrider', 'speak']\n"
        "@m.app.command()\ndef speak() -> None: sys.stdout.write('caf\\u00e9\\n')\n"
        "m.main()"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, b"caf?\n"), done.stderr.decode()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("load it with width=101", "load it with --width 101"),
        ("leave it out, or set beams=1", "leave it out, or set --beams 1"),
        ("fewer slots, or graphs=False", "fewer slots, or --no-graphs"),
        ("pass trust_remote_code=True, if you trust it", "pass --trust-remote-code, if you trust it"),
        ("max_new_tokens must be at least 1", "--max-new-tokens must be at least 1"),
        ("the seed of a draft in ./top_k/draft_top_k.py is unknown_name=3", None),
    ],
)
def test_errors_speak_of_flags(message: str, shown: str | None) -> None:
    """The command line was told to "load it with width=101", which is Python; other words and paths stay."""
    assert main.as_flags(message) == (shown or message)


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a large target takes minutes."""
    monkeypatch.setattr("outrider.models.hub.loading.load", lambda *given: pytest.fail("a model was loaded"))


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["generate", "x", "--gamma", "100"], "--gamma 100 needs a width of 101, got 9; pass --width 101"),
        (["generate", "x", "--gamma", "4", "--width", "4"], "--gamma 4 needs a width of 5, got 4; pass --width 5"),
        (["demo", "--gamma", "9"], "--gamma 9 needs a width of 10, got 9; choose at most 8"),
        (["chat", "gpt-small", "--gamma", "9"], "choose at most 8"),
        (["measure", "gpt-small", "--gamma", "9"], "pass --width 10"),
        (["plan", "gpt-small", "--gamma", "3,9"], "pass --width 10"),
    ],
    ids=str,
)
def test_a_gamma_that_is_too_large_names_the_flag(words: list[str], says: str, outrider: Command) -> None:
    """It was refused once the target was loaded; and the remedy of commands without --width was --width."""
    said = outrider(*words)
    assert said.code == 2 and says in said.err


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    "words",
    [
        ["generate", "x", "-d", "cpoy"],
        ["verify", "gpt-small", "-d", "cpoy>gpt-small"],
        ["measure", "gpt-small", "-d", "auto", "-d", "cpoy"],
        ["plan", "gpt-small", "--drafts", "auto,cpoy"],
        ["serve", "gpt-small", "-d", "auto", "-d", "cpoy", "--port", "0"],
        ["bench", "cpu", "gpt-small", "-d", "cpoy"],
    ],
    ids=str,
)
def test_a_misspelt_drafter_is_refused_before_a_model_is_loaded(words: list[str], outrider: Command) -> None:
    """It was refused once the target was loaded; a second one, once the first was loaded, too."""
    said = outrider(*words)
    assert said.code == 2 and "draft 'cpoy' is not known; did you mean 'copy'? Built in: auto, copy" in said.err


def test_a_model_that_ships_with_the_package_is_not_removed(outrider: Command) -> None:
    """`models list` shows it, and `models rm` said that there was no such model."""
    said = outrider("models", "rm", "gpt-small", "--yes")
    assert said.code == 2 and "ships with the package" in said.err


def test_an_infinite_penalty_is_refused(outrider: Command) -> None:
    """It was accepted, and makes logits that are not numbers."""
    said = outrider("generate", "The man", "-t", "gpt-small", "--repetition-penalty", "inf")
    assert said.code == 2 and "--repetition-penalty must be above 0 and at most 1e+06, got inf" in said.err


def test_help_and_version(outrider: Command) -> None:
    """Catches a command without arguments that says nothing, and options nobody can find."""
    assert "Usage: outrider" in outrider().out and "generate" in outrider("--help").out
    assert outrider("--version").out.strip().count(".") == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "2>&-"])
def test_streams_that_the_shell_has_closed(closed: str) -> None:
    """They are None in Python: `outrider generate ... >&-` was an AttributeError after the model was loaded, and then
    nothing at all: exit code 0, and the text was lost without a word."""
    command = f'exec "{sys.executable}" -c "from outrider.cli.main import main; main()"'
    words = "generate The -t gpt-small -n 2" if ">" in closed else "generate -t gpt-small"
    done = subprocess.run(f"{command} {words} {closed}", shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and done.returncode == (0 if closed == "2>&-" else 2), done.stderr
    assert ("error: standard output is closed" in done.stderr) is (closed in (">&-", "<&- >&-"))


def test_help_names_drafters_and_engines_as_their_tables_do(outrider: Command) -> None:
    """Catches a drafter or an engine that works and is not offered: the help had a list of its own."""
    said = " ".join(outrider("generate", "--help").out.split())
    assert f"Drafter: {', '.join(BUILT_IN)}, head, suffix:DIR" in said
    assert f"Engine of the target: auto, {', '.join(BACKENDS)}, torch." in said


def test_names_are_read_from_the_source_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a new entry that the help does not have, and a help that imports torch: seconds for a few names."""
    (tmp_path / "made_tables.py").write_text(
        "import sys\nTABLE: dict[str, int] = {'one': 1, 'new': 2}\nMORE: dict[str, int] = {**TABLE, 'three': 3}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert names_in("made_tables", "TABLE") == ("one", "new") and "made_tables" not in sys.modules
    assert names_in("made_tables", "MORE") == ("one", "new", "three")  # not to be seen in the source: imported
    monkeypatch.setitem(sys.modules["made_tables"].TABLE, "later", 4)
    assert names_in("made_tables", "TABLE") == ("one", "new", "later")
    del sys.modules["made_tables"]


def test_help_of_serve_says_how_a_request_names_a_draft(outrider: Command) -> None:
    """That requests may name one was all it said; a field "draft" of a request is refused."""
    assert '{"speculation": {"draft": ...}}' in " ".join(outrider("serve", "--help").out.split())


def test_help_says_what_is_true(outrider: Command) -> None:
    """It left out a dtype, and read as if no more than eight sequences could run together."""
    from outrider.models.hub.loading import DTYPES

    said = " ".join(outrider("verify", "--help").out.split())
    assert all(name in said for name in DTYPES if not name.startswith("torch"))
    assert "Sequences that run together, any number; if not given, one per prompt up to 8." in said


@pytest.mark.parametrize("line", ['{"prompt": ""}', '{"prompt": null}', "[1, 2]", '{"prompt"'])
def test_verify_names_a_prompt_that_is_no_text(line: str, tmp_path: Path, outrider: Command) -> None:
    """An empty prompt was a traceback, and anything else was verified as the text of its Python."""
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "so"}\n' + line + "\n")
    said = outrider("verify", "gpt-small", "--prompts", str(tmp_path / "prompts.jsonl"))
    assert said.code == 2 and "prompts.jsonl, prompt 2: " in said.err
