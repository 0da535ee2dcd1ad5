"""Guesses from an output that the caller expects: predicted outputs, for edits that leave most of a text as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from outrider.core.protocols import Admission
from outrider.drafters.known_rows import KnownRowsDrafter, KnownRowsSession

SURE = 3
"""Tokens that must agree for a place of the prediction to be taken up again behind a difference."""


@dataclass
class _Following:
    """Where a row stands in its prediction."""

    prediction: Sequence[int]
    place: int | None = 0  # of the token expected next; None: the text has left the prediction
    lost: int = 0  # the first place it has left it at: text goes on behind there
    text: list[int] = field(default_factory=list)  # the last tokens of the output

    def next(self, most: int) -> Sequence[int]:
        return () if self.place is None else self.prediction[self.place : self.place + most]

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text = [*self.text[-SURE + 1 :], token]
            if self.place is not None and self.place < len(self.prediction) and self.prediction[self.place] == token:
                self.place += 1
                continue
            self.lost = self.lost if self.place is None else self.place
            self.place = self._found()

    def copy(self) -> Self:
        return replace(self)  # its text is never changed in place

    def _found(self) -> int | None:
        """Where the last tokens stand in the prediction, the first such place behind the difference, else before."""
        if len(self.text) < SURE:
            return None
        size = len(self.prediction)
        ends = [end for end in range(SURE, size) if list(self.prediction[end - SURE : end]) == self.text]
        return next((end for end in ends if end > self.lost), ends[-1] if ends else None)


class _PredictedSession(KnownRowsSession[_Following]):
    def known_row(self, new: Admission) -> _Following | None:
        usable = tuple(token for token in new.prediction if 0 <= token < self.target.vocab_size)
        return _Following(usable) if usable else None


class Predicted(KnownRowsDrafter):
    """Rows with a prediction follow it; other rows, and rows that have left theirs, are drafted for by ``other``."""

    session = _PredictedSession
