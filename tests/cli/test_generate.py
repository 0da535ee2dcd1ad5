"""``outrider generate`` for one prompt: what it prints, by whatever way it decodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from command import Command
from outrider import LLM
from outrider.cli import progress
from outrider.cli.render import ending, engine_and_dtype
from outrider.output import Chunk, Output
from outrider.trace import Trace, summarise


def test_the_same_json_with_and_without_beams(chatty: str, outrider: Command) -> None:
    """prompt_tokens and error were in the JSON of beam search only."""
    words = ["generate", "the fox", "-t", chatty, "-n", "5", "--json"]
    plain, beams = json.loads(outrider(*words).out), json.loads(outrider(*words, "--beams", "2").out)
    assert set(beams) - set(plain) == {"hypotheses"} and set(plain) <= set(beams)
    assert plain["prompt_tokens"] == beams["prompt_tokens"] and plain["error"] is None
    assert set(plain["stats"]) == set(beams["stats"])


@pytest.mark.parametrize("beams", [[], ["--beams", "2"]], ids=str)
def test_statistics_name_the_engine_and_the_end(beams: list[str], chatty: str, outrider: Command) -> None:
    """Statistics did not say what ran the model, nor why the text ended; beam search printed "alpha nan"."""
    said = outrider("generate", "the fox", "-t", chatty, "-n", "5", "--gamma", "2", "--dtype", "float32", *beams)
    shown = " ".join(said.err.split())
    assert "engine torch" in shown and "float32" in shown and "ended by the limit of tokens, after 5" in shown
    assert "nan" not in said.err


ENDS = {
    "eos": (2, "the end token 2"),
    "stop": ("\n", r"the stop string '\n'"),
    "length": (None, "the limit of tokens, after 2"),
    "criteria": (None, "a stopping criterion"),
    "interrupted": (None, "Ctrl-C"),
}


@pytest.mark.parametrize("reason", ENDS)
def test_why_a_text_ended(reason: str) -> None:
    stop, says = ENDS[reason]
    assert ending(Output("ab", [5, 6], reason, 3, Trace(), stop_reason=stop)) == says


def test_control_c_keeps_what_there_is(chatty: str, outrider: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a text that is lost by Ctrl-C, and statistics of nothing where it came before the first token."""
    real = LLM.stream

    def stream(self: LLM, *given: Any, **options: Any) -> Iterator[Any]:
        for number, chunk in enumerate(real(self, *given, **options)):
            if number == after:
                raise KeyboardInterrupt
            yield chunk

    monkeypatch.setattr(LLM, "stream", stream)
    words = ["generate", "the fox", "-t", chatty, "-n", "20", "--gamma", "0"]
    after = 3
    said = outrider(*words, "--json")
    assert said.code == 130
    assert json.loads(said.out)["finish_reason"] == "interrupted" and len(json.loads(said.out)["tokens"]) == 3
    assert "ended by Ctrl-C" in " ".join(outrider(*words).err.split())
    after = 0
    said = outrider(*words)
    assert said.code == 130 and "nan" not in said.err


class Console:
    """Writes down what a status would show."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def status(self, text: str) -> Console:
        self.shown.append(text)
        return self

    def start(self) -> None: ...

    def stop(self) -> None:
        self.shown.append("stop")

    def update(self, text: str) -> None:
        self.shown.append(text)


def test_progress_while_a_long_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was shown until the first token, however long the prompt; text must not be written over a spinner."""
    console = Console()
    monkeypatch.setattr(progress, "notes", console)

    def chunks() -> Iterator[Chunk]:
        for _ in range(2):
            yield Chunk(0, "ab", (5, 6), 0, None, Trace())

    stream = progress.watched(chunks(), 7000, shown=True)
    next(stream)
    assert console.shown == ["reading a prompt of 7,000 tokens", "stop"]
    stream.close()
    console.shown.clear()
    list(progress.watched(chunks(), 7000, shown=False))
    assert console.shown == ["reading a prompt of 7,000 tokens", "2 tokens", "4 tokens", "stop"]


@pytest.mark.parametrize(
    ("engine", "dtype", "shown"),
    [("numba, float16 weights", "float16", "numba, float16 weights"), ("torch", "float32", "torch, float32")],
)
def test_a_dtype_is_named_once(engine: str, dtype: str, shown: str) -> None:
    """The demo's table said "numba, float16 weights, float16"."""
    assert engine_and_dtype(summarise(Trace(engine=engine, dtype=dtype))) == shown
