"""Messages of a conversation: typed on a terminal, with editing, history and several lines, or piped, one in a line."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from outrider.cli.common import check_utf8
from outrider.errors import PromptError, decode_utf8

QUOTES = '"""'
KEPT = 1000
"""Lines of history that are kept from one session to the next."""


class Messages(Protocol):
    """Where messages come from."""

    def read(self) -> str | None:
        """The next message without blanks around it; None at the end of the input."""

    def close(self) -> None: ...


class Piped:
    """One message in each line of standard input."""

    def read(self) -> str | None:
        line = sys.stdin.buffer.readline()
        return decode_utf8("the message", line).strip() if line else None

    def close(self) -> None:
        pass


class Typed:
    """Lines typed on a terminal. Where there is no readline they cannot be edited, and there is no history.

    A line that ends in a backslash goes on in the next one, and so does everything between triple quotes. Several
    lines that are pasted are one message.
    """

    def __init__(self, history: Path | None) -> None:
        self.history = history
        self._before = 0  # lines of history that were there
        with suppress(ImportError):
            import readline  # input() uses it from now on

            readline.parse_and_bind("set enable-bracketed-paste on")
            readline.set_history_length(KEPT)
            if history is not None:
                with suppress(OSError):
                    readline.read_history_file(history)
            self._before = readline.get_current_history_length()

    def read(self) -> str | None:
        line = self._line("> ")
        if line is None:
            return None
        if line.lstrip().startswith(QUOTES):
            return self._quoted(line.lstrip().removeprefix(QUOTES))
        lines = [line]
        while lines[-1].endswith("\\") and (line := self._line(". ")) is not None:
            lines[-1:] = [lines[-1].removesuffix("\\"), line]
        return "\n".join(lines).strip()

    def _quoted(self, text: str) -> str:
        while QUOTES not in text and (line := self._line(". ")) is not None:
            text += "\n" + line
        before, _, after = text.partition(QUOTES)
        return (before + after).strip()

    def _line(self, prompt: str) -> str | None:
        try:
            return check_utf8("the message", input(prompt))
        except EOFError:
            sys.stdout.write("\n")
            return None
        except UnicodeDecodeError as error:
            raise PromptError(f"the message is not UTF-8 ({error.reason}); type it again") from None

    def close(self) -> None:
        """Add this session's lines to the history file, which nobody else may read. It is no reason to fail."""
        with suppress(ImportError, OSError):
            import readline

            new = readline.get_current_history_length() - self._before
            if self.history is None or new <= 0:
                return
            self.history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.history, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.append_history_file(new, self.history)


def history_file() -> Path:
    """``$XDG_STATE_HOME/outrider/chat_history``, else in ``~/.local/state``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base).expanduser().absolute() if base else Path.home() / ".local" / "state") / "outrider/chat_history"
