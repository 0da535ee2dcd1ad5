"""``outrider chat`` on a pseudo-terminal: keys, colours, several lines, history and Ctrl-C."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from terminals import terminal

GREEN_OR_OTHER = re.compile("\x1b\\[(32|4;34|1;36)m")
"""How an accepted, a corrected or a bonus token begins."""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The history of a person who has none, in a place of the test's own."""
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}


def test_on_a_terminal(chatty: str, home: dict[str, str], tmp_path: Path) -> None:
    """Catches a prompt that does not come back after Ctrl-C, a part of an answer that is lost by it, a session that a
    second Ctrl-C ends without a word, and a terminal that cannot be left."""
    with terminal("chat", chatty, "-n", "40", "--no-history", "--slow", **home) as shown:
        shown.wait_for("> ")
        shown.press("the fox\n")
        shown.wait_for("<ONE>")
        shown.wait_for("(stopped)", pressing="\x03")
        shown.wait_for("> ")
        shown.press(f"/save {tmp_path}/said.json\n")
        shown.wait_for("2 messages written")
        shown.wait_for("> ")
        shown.press("/reset\n")
        shown.wait_for("begins anew")
        shown.wait_for("> ")
        shown.wait_for("Ctrl-C again", pressing="\x03")
        shown.wait_for("> ")
        assert shown.code(pressing="\x04") == 0
    question, answer = json.loads((tmp_path / "said.json").read_text("utf-8"))["messages"]
    assert question["content"] == "the fox" and answer["role"] == "assistant" and answer["content"]
    assert not (tmp_path / "state").exists(), "no history was wanted"


def test_colours_lines_and_history(chatty: str, home: dict[str, str], tmp_path: Path) -> None:
    """There were no colours, a message was one line, and the next session knew nothing of what was typed."""
    with terminal("chat", chatty, "-n", "8", "--draft", "copy", **home) as shown:
        shown.wait_for("the target's correction")
        shown.wait_for("> ")
        shown.press("one\\\n")
        shown.wait_for(". ")
        shown.press("two\n")
        shown.wait_for("tokens; see")
        assert GREEN_OR_OTHER.search(shown.all.split("two")[1])
        shown.wait_for("> ")
        shown.press('"""three\n')
        shown.wait_for(". ")
        shown.press('/four"""\n')
        shown.wait_for("tokens; see")
        shown.wait_for("> ")
        shown.press("\x1b[200~/five\nsix\x1b[201~\n")  # what a terminal sends for two pasted lines
        shown.wait_for("tokens; see")
        shown.wait_for("> ")
        shown.press(f"/save {tmp_path}/said.json\n")
        shown.wait_for("6 messages written")
        shown.wait_for("> ")
        assert shown.code(pressing="/quit\n") == 0
    said = json.loads((tmp_path / "said.json").read_text("utf-8"))["messages"]
    assert [m["content"] for m in said[::2]] == ["one\ntwo", "three\n/four", "/five\nsix"]
    history = tmp_path / "state/outrider/chat_history"
    assert history.stat().st_mode & 0o077 == 0, "what a person typed is nobody else's to read"
    with terminal("chat", chatty, "-n", "8", "--draft", "copy", NO_COLOR="1", **home) as shown:
        shown.wait_for("> ")
        shown.press("\x1b[A\x1b[A\n")  # twice the key that goes up
        shown.wait_for("error: /save")
        shown.wait_for("> ")
        shown.press("the\n")
        shown.wait_for("tokens; see")
        assert not GREEN_OR_OTHER.search(shown.all)
        shown.wait_for("> ")
        shown.wait_for("Ctrl-C again", pressing="\x03")
        shown.wait_for("> ")
        assert shown.code(pressing="\x03") == 130
