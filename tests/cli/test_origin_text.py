"""The text of a stream, split by the origin of its tokens."""

from __future__ import annotations

import sys

import pytest

from outrider.cli.origin_text import OriginText, Writer
from outrider.output import Chunk
from outrider.trace import Record, Trace


def decode(tokens: object) -> str:
    return bytes(tokens).decode("utf-8", errors="replace")  # type: ignore[call-overload]


def record(drafted: bytes, accepted: int, emitted: int) -> Record:
    return Record(0, 0, tuple(drafted), accepted, 0, (), emitted)


def test_origins_of_a_run() -> None:
    """Catches a token of a text that ended among its guesses, and a plain token called a bonus."""
    assert record(b"abcd", 2, 3).origins == ("accepted", "accepted", "corrected")
    assert record(b"ab", 2, 3).origins == ("accepted", "accepted", "bonus")
    assert record(b"", 0, 1).origins == ("plain",)
    assert record(b"abcd", 3, 2).origins == ("accepted", "accepted")


def test_text_that_lags_behind_its_tokens() -> None:
    """A stream holds back the start of a stop string and of a character of several tokens: the colours must wait."""
    text = OriginText(decode)
    text.add(b"ab", ("accepted", "corrected"))
    assert list(text.parts("a")) == [("accepted", "a")]
    text.add("é".encode(), ("plain", "bonus"))
    assert list(text.parts("b")) == [("corrected", "b")]
    assert list(text.parts("é")) == [("bonus", "é")]
    text.add(b"\xe2", ("accepted",))  # the text ends here: what cannot be completed is shown as it is
    assert list(text.parts("\ufffd")) == [("accepted", "\ufffd")]


@pytest.mark.parametrize("terminal", [True, False])
def test_control_characters(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that writes escape sequences could clear the screen or rename the window; a file gets what it wrote."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    said = "a\x1b]0;b\x07\tc\n\x9bd"
    Writer(decode).write(Chunk(0, said, (), 0, None, Trace()))
    assert capsys.readouterr().out == ("a␛]0;b␇\tc\n\ufffdd" if terminal else said)
