"""Streamed text on a terminal, each token in the colour of its origin; nothing but the text anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.style import Style
from rich.text import Text

from outrider.cli.common import answers
from outrider.cli.render import ACCEPTED, BONUS, CORRECTED
from outrider.decoding.text import GrowingText

if TYPE_CHECKING:
    from outrider.output import Chunk

STYLES = {"accepted": ACCEPTED, "corrected": f"{CORRECTED} underline", "bonus": f"{BONUS} bold", "plain": ""}
"""By origin. A person who cannot tell the colours apart sees the underline and the bold type."""

MEANINGS = {
    "accepted": "accepted guess",
    "corrected": "the target's correction",
    "bonus": "the target's own token, all guesses kept",
    "plain": "no guess was made",
}

_SHOWN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
_SHOWN |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Control characters as signs: a model's text must not move the cursor or rename the window."""


def coloured() -> bool:
    """Whether standard output is a terminal that shows colours, and NO_COLOR is not set."""
    return sys.stdout.isatty() and answers.color_system is not None and not answers.no_color


def legend() -> Text:
    return Text.assemble(*((f"{meaning}  ", STYLES[origin]) for origin, meaning in MEANINGS.items()))


class OriginText:
    """Splits a streamed text into the parts that each token gave it."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.tokens: list[int] = []
        self.origins: list[str] = []
        self._ends: list[int] = []  # of each token: where its characters end in the text
        self._growing = GrowingText(decode)
        self._shown = self._at = 0  # characters given so far, and the token that the next one belongs to

    def add(self, tokens: Sequence[int], origins: Sequence[str]) -> None:
        for token, origin in zip(tokens, origins, strict=True):
            self.tokens.append(token)
            self._growing.read(self.tokens)
            self.origins.append(origin)
            self._ends.append(self._growing.length)  # a character of several tokens belongs to the last of them

    def parts(self, text: str) -> Iterator[tuple[str, str]]:
        """The next characters of the text, as (origin, characters). A stream may be behind its tokens."""
        while text:
            while self._at < len(self._ends) - 1 and self._ends[self._at] <= self._shown:
                self._at += 1
            last = self._at >= len(self._ends) - 1
            size = len(text) if last else min(len(text), self._ends[self._at] - self._shown)
            yield (self.origins[self._at] if self.origins else "plain"), text[:size]
            text = text[size:]
            self._shown += size


class Writer:
    """Writes the chunks of one answer to standard output as they come."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._text = OriginText(decode) if coloured() else None
        self._terminal = sys.stdout.isatty()

    def write(self, chunk: Chunk) -> None:
        if self._text is None:
            sys.stdout.write(chunk.text.translate(_SHOWN) if self._terminal else chunk.text)
        else:
            if chunk.tokens:
                self._text.add(chunk.tokens, chunk.trace.records[-1].origins)
            sys.stdout.write("".join(_painted(*part) for part in self._text.parts(chunk.text)))
        sys.stdout.flush()

    def end(self) -> None:
        """The end of the line, and of any colour that an interrupted write has left on."""
        sys.stdout.write("\n" if self._text is None else "\x1b[0m\n")
        sys.stdout.flush()


def _painted(origin: str, text: str) -> str:
    return Style.parse(STYLES[origin]).render(text.translate(_SHOWN), color_system=ColorSystem.STANDARD)
