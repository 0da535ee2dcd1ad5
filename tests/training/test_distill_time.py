"""Distillation by the clock: the time limit, Ctrl-C, resuming, and what is said about them."""

from __future__ import annotations

import io
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import library
import pytest
from rich.console import Console
from typer.testing import CliRunner

from outrider.cli import distill as command
from outrider.cli.distill_progress import Stages, duration
from outrider.cli.main import app
from outrider.errors import BadOption
from outrider.models.hub import loading
from outrider.training import loop
from outrider.training.answers import SelfText
from outrider.training.data import documents
from outrider.training.distill import Plan, Quiet, distill, kept_so_far
from outrider.training.loop import Budget
from outrider.training.progress import Gathering, Written, uninterrupted
from outrider.training.rounds import Rounds
from outrider.training.sources import examples, from_examples
from outrider.training.writing import write

PLAN = Plan(
    text_tokens=1500, block=32, vocab=64, depth=2, generate_batch=8, budget=Budget(tokens=32 * 4 * 12, batch=4)
)  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> loading.Loaded:
    return loading.load(str(library.save_llama(tmp_path_factory.mktemp("time") / "llama")), "cpu", "float32")


class Clock:
    """Every look takes ``tick`` seconds."""

    def __init__(self, tick: float) -> None:
        self.time, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.time += self.tick
        return self.time


class Log(Quiet):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.texts: list[Written] = []
        self.reports: list[Any] = []
        self.resumed: list[str] = []

    def writing(self, text: Written) -> None:
        self.texts.append(text)

    def training(self, report: Any) -> None:
        self.reports.append(report)

    def resuming(self, line: str) -> None:
        self.resumed.append(line)


# --- the time limit ----------------------------------------------------------------------------------


def test_the_limit_covers_writing_and_training(target: loading.Loaded, tmp_path: Path) -> None:
    """--seconds limited the training alone: by default a CPU wrote text for hours before it."""
    plan = replace(PLAN, text_tokens=10**9, seconds=600.0, budget=replace(PLAN.budget, tokens=10**9))
    clock, log = Clock(1.0), Log()
    last = distill(target, tmp_path / "draft", plan, log, clock)
    writing = json.loads((tmp_path / "draft" / "training" / "clock.json").read_text())["writing"]
    assert 300 <= writing < 340 and clock.time < 660  # half of it, and little more than all of it
    assert last.step >= 1 and last.measured is not None
    assert all(text.seconds_left is not None and text.seconds_left <= 300 for text in log.texts)
    assert (tmp_path / "draft" / "model.safetensors").is_file()


def test_text_that_is_done_early_leaves_its_time_to_training(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a split by halves whatever writing has taken: with text at hand all of the time is for training."""
    distill(target, tmp_path / "first", PLAN)
    text = str(tmp_path / "first" / "training" / "text.safetensors")
    clock = Clock(1.0)
    last = distill(target, tmp_path / "draft", replace(PLAN, text=text, seconds=100.0), None, clock)
    assert 80 <= clock.time <= 110 and last.step > 5


def test_a_limit_too_short_for_anything_gives_a_draft(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a division by nothing, or no text at all: some texts and one step are always done."""
    last = distill(target, tmp_path / "draft", replace(PLAN, seconds=1e-6), None, Clock(5.0))
    assert last.step == 1 and last.measured is not None
    assert (tmp_path / "draft" / "model.safetensors").is_file()


def test_texts_end_where_they_are(target: loading.Loaded) -> None:
    """A batch of texts was written to its end: minutes on a CPU, whatever the time."""
    asked = [[5, 6, 7]] * 4
    how: dict[str, Any] = {"new_tokens": 40, "temperature": 1.0, "batch": 2, "seed": 1}
    whole = list(write(target.model, target.tokenizer, asked, **how))
    cut = list(write(target.model, target.tokenizer, asked, **how, going_on=lambda texts, tokens: tokens < 10))
    assert len(whole) == 4 and len(cut) == 2  # the second batch is not begun
    for (_, short), (_, long) in zip(cut, whole[:2], strict=True):
        assert len(short) <= 5 and long[: len(short)] == short


def test_the_time_left() -> None:
    """Catches a time left that counts text which an earlier run wrote as this one's speed."""
    said: list[Written] = []
    gathering = Gathering(1000, report=said.append, now=iter(range(100)).__next__)
    gathering.add(4, 400, read=True)
    assert said[-1].seconds_left is None  # nothing is known of the speed yet
    gathering.add(1, 100)
    assert said[-1].tokens == 500 and said[-1].seconds_left == pytest.approx(500 * 1 / 100)
    assert [duration(s) for s in (45, 300, 9000)] == ["45 s", "5 min", "2 h 30 min"]


# --- Ctrl-C ------------------------------------------------------------------------------------------


def _pressing(target: loading.Loaded, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C inside the target's run number ``after``."""
    real, runs = target.model.model.forward, iter(range(1, 10**9))

    def forward(*given: Any, **options: Any) -> Any:
        if next(runs) == after:
            signal.raise_signal(signal.SIGINT)
        return real(*given, **options)

    monkeypatch.setattr(target.model.model, "forward", forward)


def test_ctrl_c_keeps_what_was_written(target: loading.Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """75 seconds of writing were lost without a word: a round was kept when it was finished, not before."""
    plan, out = replace(PLAN, text_tokens=4000), tmp_path / "draft"
    with monkeypatch.context() as patch:
        _pressing(target, patch, 96 + 30)  # behind the prompts of the first round, in its answers
        with pytest.raises(KeyboardInterrupt):
            distill(target, out, plan)
    kept = kept_so_far(out)
    assert kept is not None and kept.endswith("tokens of text")
    pairs = Rounds(out / "training" / "rounds").load(0)
    assert pairs is not None and len(pairs) == plan.generate_batch and all(answer for _, answer in pairs)
    log = Log()
    distill(target, out, plan, log)
    assert log.resumed == [kept]
    assert log.texts[1].tokens == int(kept.split()[0].replace(",", ""))  # goes on from there


def test_ctrl_c_keeps_sources_and_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an encoder-decoder wrote was kept only when all of it was there."""
    t5 = loading.load(str(library.save_t5(tmp_path / "t5")), "cpu", "float32")
    given = [(f"the end {i}", None) for i in range(6)]
    plan = SelfText(10**6, (1.0,), new_tokens=12, batch=4, block=16)  # one temperature: an index error, once
    with monkeypatch.context() as patch:
        _pressing(t5, patch, 6)
        with pytest.raises(KeyboardInterrupt):
            from_examples(t5, given, plan, Gathering(plan.tokens), Rounds(tmp_path / "rounds"))
    pairs = Rounds(tmp_path / "rounds").load(0)
    assert pairs is not None and len(pairs) == 4 and all(1 <= len(answer) <= 6 for _, answer in pairs)


class _Pressed(Quiet):
    """Ctrl-C at the first report of a step from ``step`` on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def training(self, report: Any) -> None:
        if report.step >= self.step:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_keeps_the_training(target: loading.Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """78 seconds of training were lost: checkpoints came every 100 steps, and a step can take a minute."""
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    distill(target, whole, PLAN)
    with pytest.raises(KeyboardInterrupt):
        distill(target, broken, PLAN, _Pressed(5))
    steps = str(kept_so_far(whole)).split()[-1]
    assert str(kept_so_far(broken)).endswith(f"step 5 of {steps}")
    log = Log()
    distill(target, broken, PLAN, log)
    assert log.resumed == [f"{kept_so_far(whole)}".replace(f"step {steps} of", "step 5 of")]
    assert log.reports[0].step == 6
    one, two = ((folder / "model.safetensors").read_bytes() for folder in (whole, broken))
    assert one == two


def test_checkpoints_by_the_clock(target: loading.Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill cost up to 100 steps, however long they take."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 40.0)
    saved: list[int] = []
    real = loop._save
    monkeypatch.setattr(loop, "_save", lambda *given: (saved.append(int(given[-1]["step"])), real(*given)))
    distill(target, tmp_path / "draft", PLAN, None, Clock(2.0))
    assert len(saved) > 2 and saved[-1] > saved[0] and saved[0] < 11


def test_a_step_is_whole_or_not_done() -> None:
    """Catches weights of half an optimiser step in a checkpoint: Ctrl-C waits for the end of the block."""
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append("step")
    assert done == ["step"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- what is said ------------------------------------------------------------------------------------


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
    pressed = _Pressed(3)
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

    prepare(tmp_path / "draft", PLAN)
    distill(target, tmp_path / "draft", replace(PLAN, depth=3))
    with pytest.raises(BadOption, match="other settings.*--text"):
        distill(target, tmp_path / "draft", PLAN)


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
