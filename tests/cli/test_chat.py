"""``outrider chat``: what the model is shown turn by turn, by a pipe and on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from command import Command
from outrider import LLM, load


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts the model was shown, as they come."""
    shown: list[str] = []
    real = LLM.stream

    def stream(self: LLM, prompt: Any, **options: Any) -> Iterator[Any]:
        shown.append(self.decode(prompt))
        return real(self, prompt, **options)

    monkeypatch.setattr(LLM, "stream", stream)
    return shown


def test_a_conversation_by_a_pipe(chatty: str, asked: list[str], outrider: Command) -> None:
    """There was no chat: the model must see what was said before, and answer each line of the input."""
    said = outrider("chat", chatty, "-n", "4", "--system", "be brief", stdin=b"the fox\n\n so \n")
    one, two, *rest = said.out.split("\n")
    assert said.code == 0 and rest == [""] and "\x1b" not in said.err
    assert asked == [
        "system: be brief\nuser: the fox\nassistant: ",
        f"system: be brief\nuser: the fox\nassistant: {one}\nuser: so\nassistant: ",
    ]
    model = load(chatty)
    assert one == model.generate(asked[0], max_new_tokens=4).text
    assert two == model.generate(asked[1], max_new_tokens=4).text


def test_commands(chatty: str, asked: list[str], outrider: Command) -> None:
    """Catches a command that is sent to the model, and a reset that forgets nothing or the system message too."""
    lines = b"/stats\nthe\n/reset\n/nonsense\n//so\n/stats\n/exit\nnever\n"
    said = outrider("chat", chatty, "-n", "3", "--system", "sys", stdin=lines)
    assert asked == ["system: sys\nuser: the\nassistant: ", "system: sys\nuser: /so\nassistant: "]
    assert said.code == 0 and "no answer yet" in said.err and "there is no command /nonsense" in said.err
    assert "tokens per target run" in said.err and "engine" in said.err and "ended by" in said.err


def test_the_oldest_turns_are_left_out(chatty: str, asked: list[str], outrider: Command) -> None:
    """The model holds 128 tokens: a conversation must not end there, and forgetting must be said."""
    lines = b"first" * 3 + b"\n" + b"second" * 3 + b"\n" + b"third" * 6 + b"\n"
    said = outrider("chat", chatty, "-n", "8", stdin=lines)
    assert said.code == 0 and len(asked) == 3
    assert "first" in asked[1] and "first" not in asked[2] and "third" in asked[2]
    assert "(left out the oldest turn: the model holds 128 tokens)" in said.err


def test_a_message_that_cannot_be_answered(chatty: str, asked: list[str], outrider: Command) -> None:
    """Catches a conversation that ends, or forgets, because of one message; the exit code must tell."""
    said = outrider("chat", chatty, "-n", "3", stdin=b"the\n" + b"b" * 300 + b"\ncaf\xe9\nso\n")
    assert said.code == 1 and "the model's limit is 128; shorten it" in said.err and "not UTF-8" in said.err
    assert len(asked) == 2 and asked[1].startswith("user: the\n")


def test_a_model_without_a_template(outrider: Command) -> None:
    said = outrider("chat", "gpt-small", stdin=b"hello\n")
    assert said.code == 2 and "no chat template" in said.err and said.out == ""


SLOW = """
import os, sys, time
os.close(os.open(os.ttyname(0), os.O_RDWR))  # a session's first terminal becomes the one that Ctrl-C comes from
from outrider import LLM
from outrider.cli.main import main
real = LLM.stream
def stream(self, *given, **options):
    for number, chunk in enumerate(real(self, *given, **options)):
        yield chunk
        if number == 0:
            sys.stderr.write("<ONE>")
            while True:
                time.sleep(0.05)
if "--slow" in sys.argv:
    sys.argv.remove("--slow")
    LLM.stream = stream
main()
"""


class Terminal:
    """A process on a terminal of its own: what it writes, and keys."""

    def __init__(self, *words: str) -> None:
        self.seen = ""
        self.file, theirs = pty.openpty()
        command = [sys.executable, "-c", SLOW, *words]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)

    def wait_for(self, text: str, pressing: str = "") -> None:
        """Until the text has come, after everything waited for before."""
        for _ in self._waiting(pressing):
            if text in self.seen:
                self.seen = self.seen.partition(text)[2]
                return

    def code(self, pressing: str) -> int:
        """The exit code of a process that is about to leave."""
        for _ in self._waiting(pressing):
            if self.process.poll() is not None:
                break
        return self.process.returncode

    def _waiting(self, pressing: str) -> Iterator[None]:
        """Read on. Keys are pressed again now and then: Python misses a Ctrl-C just before it begins to read."""
        for tick in range(1200):
            if pressing and tick % 100 == 0:
                with suppress(OSError):  # the terminal closes with its process
                    self.press(pressing)
            if select.select([self.file], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.file, 4096).decode(errors="replace")
                except OSError:  # closed by a process that has not quite ended: nothing to wait for but time
                    time.sleep(0.1)
            yield
        raise AssertionError(self.seen)

    def press(self, keys: str) -> None:
        os.write(self.file, keys.encode())


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    shown = Terminal(*words)
    try:
        yield shown
    finally:
        os.close(shown.file)
        shown.process.kill()  # if the test failed
        shown.process.wait()


def test_on_a_terminal(chatty: str) -> None:
    """Catches a prompt that does not come back after Ctrl-C, and a terminal that cannot be left."""
    with terminal("chat", chatty, "-n", "40", "--slow") as shown:
        shown.wait_for("> ")
        shown.press("the fox\n")
        shown.wait_for("<ONE>")
        shown.wait_for("(stopped)", pressing="\x03")
        shown.wait_for("> ")
        shown.press("/reset\n")
        shown.wait_for("begins anew")
        shown.wait_for("> ")
        shown.wait_for("Ctrl-C again", pressing="\x03")
        shown.wait_for("> ")
        assert shown.code(pressing="\x04") == 0


def test_two_interrupts_leave(chatty: str) -> None:
    """Catches a person held in a conversation by Ctrl-C that only ever stops the answer."""
    with terminal("chat", chatty, "-n", "40", "--slow") as shown:
        shown.wait_for("> ")
        shown.press("the fox\n")
        shown.wait_for("<ONE>")
        shown.wait_for("(stopped)", pressing="\x03")
        shown.wait_for("> ")
        assert shown.code(pressing="\x03") == 130
