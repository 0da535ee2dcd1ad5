"""A row's text in the tokens of a draft whose tokenizer is not the target's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Self

from outrider.models.hub.shared_tokens import SharedTokens
from outrider.models.hub.token_bytes import complete

BLOCK = 256
"""Bytes after which the text is cut at the next word: tokenizers do not join tokens across one, and what lies before
need not be encoded again."""

_WORD = re.compile(rb" [^\s]")


class DraftText:
    """The target's tokens, encoded as the draft's tokenizer encodes their text. A function of the text alone.

    The encoding of what was written before may change at its end when more is written: ``settled`` tokens will not.
    """

    def __init__(self, shared: SharedTokens, tokens: Sequence[int] = ()) -> None:
        self.shared = shared
        self.tokens: list[int] = []  # the target's
        self.encoded = list(shared.draft.start)  # the draft's, of what is settled
        self.open = b""  # written behind it
        self._first = self._empty = True  # nothing was written before ``open``, and in it
        self.append(tokens)

    @property
    def settled(self) -> int:
        return len(self.encoded)

    def append(self, tokens: Sequence[int]) -> None:
        """Tokens were added to the target's text."""
        target, begin = self.shared.target, len(self.tokens)
        self.tokens += tokens
        for place, token in enumerate(tokens, begin):
            piece = target.pieces.get(token)
            if piece is not None:
                self.open += piece.removeprefix(b" ") if self._empty and target.adds_space else piece
                self._empty = False
            elif target.start[place : place + 1] != (token,):  # the draft has a start of its own
                self._close(token)
        while match := _WORD.search(self.open, BLOCK):
            self._settle(match.start())

    def ids(self) -> list[int] | None:
        """The draft's tokens; None: there is no text, or the draft cannot write the unfinished character it ends in."""
        end = complete(self.open)
        known = self.shared.draft.ids
        rest = [known.get(self.open[place : place + 1]) for place in range(end, len(self.open))]
        spelled = [token for token in rest if token is not None]
        if len(spelled) < len(rest):
            return None
        return (self.encoded + self._encode(self.open[:end]) + spelled) or None

    def copy(self) -> Self:
        other = copy(self)
        other.tokens, other.encoded = list(self.tokens), list(self.encoded)
        return other

    def _encode(self, text: bytes) -> list[int]:
        return self.shared.draft.encode_behind(text, self._first)

    def _settle(self, end: int) -> None:
        self.encoded += self._encode(self.open[:end])
        self.open, self._first = self.open[end:], False

    def _close(self, special: int) -> None:
        """A special token: no token goes across it. One that the draft does not have is left out."""
        if self.open:
            self._settle(len(self.open))
        if special in self.shared.special:
            self.encoded.append(self.shared.special[special])
            self._first = False


def common_prefix(one: Sequence[int], other: Sequence[int], known: int = 0) -> int:
    """How many leading tokens are the same; the first ``known`` are."""
    most = min(len(one), len(other))
    return next((place for place in range(known, most) if one[place] != other[place]), most)
