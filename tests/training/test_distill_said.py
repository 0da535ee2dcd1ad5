"""What ``outrider distill`` says: stages, what an interruption kept, and what is wrong with numbers and files."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from distilling import SHORT, Pressed
from outrider.cli import distill as command
from outrider.cli.distill_progress import Stages
from outrider.cli.main import app
from outrider.errors import BadOption
from outrider.models.hub import loading
from outrider.training import loop
from outrider.training.data import documents
from outrider.training.distill import distill, kept_so_far
from outrider.training.progress import Written
from outrider.training.sources import examples


@pytest.fixture
def words(target: loading.Loaded, tmp_path: Path) -> Iterator[list[str]]:
    yield [
        "distill", target.name, "--out", str(tmp_path / "draft"), "--tokens", "1500", "--text-tokens", "1500",
        "--block", "32", "--batch", "4", "--depth", "2", "--generate-batch", "8", "--vocab", "64", "--dtype", "float32",
        "--no-measure",
    ]  # fmt: skip


def test_the_command_says_what_it_kept(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: loading.Loaded
) -> None:
    """Ctrl-C said "interrupted" and nothing else; the end was a Python dict."""
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["outrider", *words])
    pressed = Pressed(3)
    with monkeypatch.context() as patch:
        patch.setattr(
            command.Stages, "training", lambda self, report: (self.show("training"), pressed.training(report))
        )
        stopped = CliRunner().invoke(app, words)
    assert stopped.exit_code == 130 and stopped.stdout == ""
    said = " ".join(stopped.stderr.split())
    assert "loading" in said and "writing text: 0 of 1,500 tokens" in said
    assert (
        f"interrupted while training: {kept_so_far(tmp_path / 'draft')} kept in {tmp_path / 'draft' / 'training'}"
        in said
    )
    assert said.endswith(f"Go on with: {shlex.join(['outrider', *words])}")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "resuming: " in result.stderr and "step 3 of" in result.stderr
    assert "Acceptance (alpha)" in result.stdout and "{" not in result.stdout and "steps are few" in result.stdout
    assert all(len(line) <= 80 or str(tmp_path) in line for line in result.stdout.splitlines())
    again = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert again["steps"] > 3 and again["text_tokens"] > 100


def test_stages_without_a_terminal_are_lines() -> None:
    """The line said "loading" while text was written: a stage is shown when it begins, then every few seconds."""
    page = io.StringIO()
    stages = Stages(Console(file=page, soft_wrap=True), now=iter(range(0, 100, 4)).__next__)
    with stages:
        stages.show("loading", "model")
        for tokens in (0, 100, 200, 300, 400, 500):
            stages.writing(Written(tokens, 1000, 90.0))
    assert page.getvalue().splitlines() == [
        "loading: model",
        "writing text: 0 of 1,000 tokens, 2 min left",
        "writing text: 300 of 1,000 tokens, 2 min left",
    ]


def test_nothing_kept_nothing_held_against_it(target: loading.Loaded, tmp_path: Path) -> None:
    """A mistyped target left a plan behind, and the right command was refused for other settings."""
    from outrider.training.distill import prepare

    prepare(tmp_path / "draft", SHORT)
    distill(target, tmp_path / "draft", replace(SHORT, depth=3))
    with pytest.raises(BadOption, match="other settings.*--text"):
        distill(target, tmp_path / "draft", SHORT)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--seconds", "0"], "seconds must be above 0"),
        (["--text-tokens", "0"], "text_tokens must be at least 1"),
        (["--generate-batch", "0"], "generate_batch must be at least 1"),
        (["--block", "1"], "block must be at least 2"),
        (["--rate", "-1"], "rate must be above 0"),
    ],
)
def test_numbers_that_cannot_be(given: list[str], says: str, words: list[str], tmp_path: Path) -> None:
    """Ended in a traceback, or in an endless loop."""
    error = CliRunner().invoke(app, [*words, *given]).exception
    assert isinstance(error, BadOption) and says in str(error) and not (tmp_path / "draft").exists()


def test_what_means_nothing_to_a_model(words: list[str], tmp_path: Path) -> None:
    """--depth was ignored."""
    error = CliRunner().invoke(app, [*words, "--kind", "model", "--blocks", "2"]).exception
    assert isinstance(error, BadOption) and not (tmp_path / "draft").exists()
    assert str(error) == "--depth, --blocks means nothing to --kind model, which is no head; leave it out"


def test_layers_are_looked_at_before_text_is_written(target: loading.Loaded, tmp_path: Path) -> None:
    """A layer that the target does not have was found out behind the text, which can take hours."""
    plan = replace(SHORT, kind="model", layers="0,99")
    with pytest.raises(BadOption, match="there is no layer"):
        distill(target, tmp_path / "draft", plan)
    assert kept_so_far(tmp_path / "draft") is None


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b"caf\xe9 au lait\n", "a.txt is not UTF-8 text"),
        ("a.jsonl", b'"good"\n{"words": 1}\n', "a.jsonl, line 2: needs a text"),
        ("a.jsonl", b"good\n", "a.jsonl, line 1: needs a text"),
        ("a.txt.gz", b"no gzip", "a.txt.gz cannot be unpacked"),
    ],
)
def test_files_that_are_no_text(name: str, data: bytes, says: str, tmp_path: Path) -> None:
    """Each was a traceback, after the target had been loaded."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadOption, match=says):
        list(documents([tmp_path / name]))
    with pytest.raises(BadOption, match=name):
        list(examples([tmp_path / name]))


@pytest.mark.parametrize("option", ["--data", "--prompts"])
def test_files_that_hold_no_text(words: list[str], option: str, tmp_path: Path) -> None:
    """With an empty file of prompts the target wrote text for half an hour, as if none had been named."""
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    wrong = {"empty.txt": "is empty", "latin.txt": "not UTF-8", "": "is a directory", "none.txt": "no such file"}
    for name, says in wrong.items():
        error = CliRunner().invoke(app, [*words, option, str(tmp_path / name)]).exception
        assert isinstance(error, BadOption) and says in str(error) and not (tmp_path / "draft").exists()
    error = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "empty.txt")]).exception
    assert isinstance(error, BadOption) and "is a file; name a new directory" in str(error)
