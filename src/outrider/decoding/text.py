"""The text of a growing list of tokens, decoded a few tokens at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

UNFINISHED = "\ufffd"
"""What tokenizers show for the bytes of a character that is not complete."""

_CONTEXT = 8
"""Decoded before the new tokens: places where the text did not end in an unfinished character."""


class GrowingText:
    """``decode(tokens)``, piece by piece: adding a token takes the same time however long the text is.

    New tokens are decoded behind a few that are known. That is the end of the whole text for tokenizers whose tokens
    depend on their neighbours only: byte-level BPE (characters of several tokens), SentencePiece and WordPiece (the
    first token loses its space), byte fallback. Windows begin where no character was unfinished, and hold some text.
    Where known text changes (a run of bytes that turns out to be invalid, spaces that are cleaned up), all is decoded
    anew, once.
    """

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self._seen = 0  # tokens read so far
        self._begin()

    def _begin(self) -> None:
        self.pieces: list[str] = []  # text that is settled
        self.length = 0  # characters in them
        self.rest = ""  # text behind them, which ends in an unfinished character
        self._start = self._end = 0  # tokens of the window's known part
        self._known = ""  # their text, decoded alone
        self._places: deque[int] = deque([0], maxlen=_CONTEXT)

    def read(self, tokens: Sequence[int]) -> int:
        """Tokens may have been added -> the place from which on the text may be new."""
        before = self.length
        if len(tokens) == self._seen:
            return before
        self._seen = len(tokens)
        window = self.decode(tokens[self._start :])
        if not window.startswith(self._known):
            self._begin()
            before, window = 0, self.decode(tokens)
        self.rest = window[len(self._known) :]
        if not self.rest.endswith(UNFINISHED):
            self._settle(tokens, window)
        return before

    def after(self, place: int) -> str:
        """The text from a place on."""
        left, parts = self.length - max(place, 0), [self.rest[max(0, place - self.length) :]]
        for piece in reversed(self.pieces):
            if left <= 0:
                break
            parts.append(piece[-left:])
            left -= len(piece)
        return "".join(reversed(parts))

    def _settle(self, tokens: Sequence[int], window: str) -> None:
        self.pieces.append(self.rest)
        self.length += len(self.rest)
        self.rest, self._end = "", len(tokens)
        self._places.append(self._end)
        context = self.decode(tokens[self._places[0] :]) if self._places[0] > self._start else ""
        if context:  # without any text the first new token would be taken for the first of all
            self._start, self._known = self._places[0], context
        else:
            self._known = window
