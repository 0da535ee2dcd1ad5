"""Guesses from an output that the caller expects: predicted outputs, for edits that leave most of a text as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Admission, Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits, traits_of
from outrider.drafters.known_rows import KnownRowsSession

SURE = 3
"""Tokens that must agree for a place of the prediction to be taken up again behind a difference."""


class Predicted:
    """Rows with a prediction follow it; other rows, and rows that have left theirs, are drafted for by ``other``."""

    def __init__(self, other: Drafter) -> None:
        self.other = other
        self.name = other.name

    @property
    def traits(self) -> DrafterTraits:
        return traits_of(self.other)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _PredictedSession(self.other.start(rows, shape, target), rows, target)


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
        """Tokens were added to the text."""
        for token in tokens:
            self.text = [*self.text[-SURE + 1 :], token]
            if self.place is not None and self.place < len(self.prediction) and self.prediction[self.place] == token:
                self.place += 1
                continue
            self.lost = self.lost if self.place is None else self.place
            self.place = self._found()

    def _found(self) -> int | None:
        """Where the last tokens stand in the prediction, the first such place behind the difference, else before."""
        if len(self.text) < SURE:
            return None
        size = len(self.prediction)
        ends = [end for end in range(SURE, size) if list(self.prediction[end - SURE : end]) == self.text]
        return next((end for end in ends if end > self.lost), ends[-1] if ends else None)


class _PredictedSession(KnownRowsSession):
    def __init__(self, other: DraftSession, rows: int, target: Session) -> None:
        super().__init__(other, rows, target)
        self.following: dict[int, _Following] = {}  # by row

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        super().admit_all(admissions)
        for new in admissions:
            self.following.pop(new.row, None)
            if new.prediction:
                self.following[new.row] = _Following(tuple(new.prediction))

    def release(self, row: int) -> None:
        super().release(row)
        self.following.pop(row, None)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        known = {row: self._guesses(each, gamma) for row, each in self.following.items()} if gamma else {}
        known = {row: guesses for row, guesses in known.items() if guesses}
        return self._with(known, gamma, sampling, noise, at)

    def _guesses(self, row: _Following, gamma: int) -> Sequence[int]:
        return [token for token in row.next(gamma) if 0 <= token < self.target.vocab_size]

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        super().commit(tokens, count)
        for row, each in self.following.items():
            each.read(tokens[row, : int(count[row])].tolist())

    def rewind(self, lengths: Tensor) -> None:
        super().rewind(lengths)
        self.following.clear()  # only a cascade takes tokens back, and it has no predictions

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.following = {new: self.following[old] for new, old in enumerate(rows.tolist()) if old in self.following}
