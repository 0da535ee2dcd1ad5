"""``outrider chat``: what the model is shown turn by turn, and its commands, by a pipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
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


def test_more_commands(chatty: str, asked: list[str], outrider: Command, tmp_path: Path) -> None:
    """There was no way to keep a conversation or to change the drafter within one; a typing error named no remedy."""
    text, as_json = tmp_path / "said.txt", tmp_path / "said.json"
    lines = ["/save", f"/save {text}", "/draft", "the", "/draft none", "so", "/stats now", f"/save {text}",
             f"/save {text}", f"/save {as_json}", "/stat", "/draft cpoy", "/quit", "never"]  # fmt: skip
    said = outrider("chat", chatty, "-n", "3", "--draft", "copy", "--system", "sys", stdin="\n".join(lines).encode())
    assert said.code == 1, "the commands that failed"
    for reason in (
        "/save needs a file", "nothing was said yet", "drafted for by copy; /draft NAME", "drafted for by none from",
        "/stats takes no argument, got 'now'", "there is no command /stat; did you mean /stats?",
        "did you mean 'copy'?",
    ):  # fmt: skip
        assert reason in said.err
    messages = json.loads(as_json.read_text("utf-8"))["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in messages if m["role"] != "assistant"] == ["sys", "the", "so"] and len(asked) == 2
    assert said.out == "".join(f"{m['content']}\n" for m in messages if m["role"] == "assistant")
    assert text.read_text("utf-8") == "\n".join(f"{m['role']}:\n{m['content']}\n" for m in messages)


def test_a_saved_conversation_is_a_prompt(chatty: str, outrider: Command, tmp_path: Path) -> None:
    """Catches a file that the program itself cannot read."""
    file = tmp_path / "said.jsonl"
    outrider("chat", chatty, "-n", "3", stdin=f"the\n/save {file}\n".encode())
    said = outrider("generate", "--target", chatty, "--prompts", str(file), "-n", "2")
    assert said.code == 0 and json.loads(said.out)["text"]


@pytest.mark.parametrize("place", [".", "no/such/place.txt", "there.txt"])
def test_a_file_that_cannot_be_written(
    place: str, chatty: str, asked: list[str], outrider: Command, tmp_path: Path
) -> None:
    """Catches a file of the user's that is overwritten, and a conversation that ends because of a file."""
    (tmp_path / "there.txt").write_text("precious")
    said = outrider("chat", chatty, "-n", "3", stdin=f"the\n/save {tmp_path / place}\nso\n".encode())
    assert said.code == 1 and f"/save {tmp_path / place}" in said.err
    assert len(asked) == 2, "the next message was answered"
    assert (tmp_path / "there.txt").read_text() == "precious"
