"""Distillation by the clock: the time limit, Ctrl-C, resuming, and what is said about them."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import library
from distilling import SHORT, Clock, Log, Pressed
from outrider.cli.distill_progress import duration
from outrider.models.hub import loading
from outrider.training import loop
from outrider.training.answers import SelfText
from outrider.training.distill import distill, kept_so_far
from outrider.training.progress import Gathering, Written, uninterrupted
from outrider.training.rounds import Rounds
from outrider.training.sources import from_examples
from outrider.training.writing import write

# --- the time limit ----------------------------------------------------------------------------------


def test_the_limit_covers_writing_and_training(target: loading.Loaded, tmp_path: Path) -> None:
    """--seconds limited the training alone: by default a CPU wrote text for hours before it."""
    plan = replace(SHORT, text_tokens=10**9, seconds=600.0, budget=replace(SHORT.budget, tokens=10**9))
    clock, log = Clock(1.0), Log()
    last = distill(target, tmp_path / "draft", plan, log, clock)
    writing = json.loads((tmp_path / "draft" / "training" / "clock.json").read_text())["writing"]
    assert 300 <= writing < 340 and clock.time < 660  # half of it, and little more than all of it
    assert last.step >= 1 and last.measured is not None
    assert all(text.seconds_left is not None and text.seconds_left <= 300 for text in log.texts)
    assert (tmp_path / "draft" / "model.safetensors").is_file()


def test_text_that_is_done_early_leaves_its_time_to_training(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a split by halves whatever writing has taken: with text at hand all of the time is for training."""
    distill(target, tmp_path / "first", SHORT)
    text = str(tmp_path / "first" / "training" / "text.safetensors")
    clock = Clock(1.0)
    last = distill(target, tmp_path / "draft", replace(SHORT, text=text, seconds=100.0), None, clock)
    assert 80 <= clock.time <= 110 and last.step > 5


def test_a_limit_too_short_for_anything_gives_a_draft(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a division by nothing, or no text at all: some texts and one step are always done."""
    last = distill(target, tmp_path / "draft", replace(SHORT, seconds=1e-6), None, Clock(5.0))
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
    plan, out = replace(SHORT, text_tokens=4000), tmp_path / "draft"
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


def test_ctrl_c_keeps_the_training(target: loading.Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """78 seconds of training were lost: checkpoints came every 100 steps, and a step can take a minute."""
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    distill(target, whole, SHORT)
    with pytest.raises(KeyboardInterrupt):
        distill(target, broken, SHORT, Pressed(5))
    steps = str(kept_so_far(whole)).split()[-1]
    assert str(kept_so_far(broken)).endswith(f"step 5 of {steps}")
    log = Log()
    distill(target, broken, SHORT, log)
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
    distill(target, tmp_path / "draft", SHORT, None, Clock(2.0))
    assert len(saved) > 2 and saved[-1] > saved[0] and saved[0] < 11


def test_a_step_is_whole_or_not_done() -> None:
    """Catches weights of half an optimiser step in a checkpoint: Ctrl-C waits for the end of the block."""
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append("step")
    assert done == ["step"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
