"""What drafters share that know the guesses of some rows, and ask another drafter for the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Admission, Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits, traits_of
from outrider.drafters.composite import CompositeSession
from outrider.drafters.fallback import joined, widened


class KnownRow(Protocol):
    """A row whose next tokens may be known."""

    def next(self, most: int) -> Sequence[int]:
        """Guesses, up to so many."""

    def read(self, tokens: Sequence[int]) -> None:
        """Tokens were added to the text."""

    def copy(self) -> Self:
        """The same for another row, which goes on by itself."""


R = TypeVar("R", bound=KnownRow)


class KnownRowsDrafter:
    """A drafter around ``other``, which drafts for rows of which nothing is known."""

    session: ClassVar[type[KnownRowsSession]]  # type: ignore[type-arg]

    def __init__(self, other: Drafter) -> None:
        self.other = other
        self.name = other.name

    @property
    def traits(self) -> DrafterTraits:
        return traits_of(self.other)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return self.session(self.other.start(rows, shape, target), rows, target)


class KnownRowsSession(CompositeSession, Generic[R]):
    """Guesses that are known cost nothing: a row that has some is not drafted for by the session below."""

    caps: Tensor | None = None  # [B]: guesses a row may have; None: as many as are asked for
    spent: int | None = None  # guesses that the session below made for the last draft
    spent_for: Sequence[int] | None = None

    def __init__(self, other: DraftSession, rows: int, target: Session) -> None:
        super().__init__(other)
        self.rows, self.target = rows, target
        self.known: dict[int, R] = {}  # by row

    @abstractmethod
    def known_row(self, new: Admission) -> R | None:
        """What is known of a row that starts, if anything."""

    @property
    def capturable(self) -> bool:
        return False  # which rows have guesses is known to the host

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        super().admit_all(admissions)
        for new in admissions:
            self.known.pop(new.row, None)
            if (row := self.known_row(new)) is not None:
                row.read(new.prompt[len(new.prompt) - new.written :])
                self.known[new.row] = row

    def release(self, row: int) -> None:
        super().release(row)
        self.known.pop(row, None)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        super().commit(tokens, count)
        for row, each in self.known.items():
            each.read(tokens[row, : int(count[row])].tolist())

    def rewind(self, lengths: Tensor) -> None:
        super().rewind(lengths)
        self.known.clear()  # only a cascade takes tokens back, and nothing is known of its rows

    def _select(self, rows: Tensor) -> None:
        self.rows, self.caps = len(rows), None
        before = self.known
        self.known = {new: before[old].copy() for new, old in enumerate(rows.tolist()) if old in before}

    def fork(self, rows: Tensor) -> Self:
        other = super().fork(rows)
        other.known = {}  # hypotheses of a search are drafted for by the session below
        return other

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        return self._with(self.guesses(gamma), gamma, sampling, noise, at)

    def guesses(self, gamma: int) -> dict[int, Sequence[int]]:
        """Those of rows that have some, up to what a row may guess."""
        most = [gamma] * self.rows if self.caps is None else self.caps.clamp(max=gamma).tolist()
        found = {row: each.next(most[row]) for row, each in self.known.items()} if gamma else {}
        return {row: guesses for row, guesses in found.items() if guesses}

    def _with(
        self, known: Mapping[int, Sequence[int]], gamma: int, sampling: Sampling, noise: Noise, at: Tensor
    ) -> Draft:
        """Known guesses by row; the session below drafts for rows without any that may have some."""
        if not known:
            self.abilities[0].cap(self.caps)
            return self._ask(gamma, sampling, noise, at)
        mine, has_some = self._points(known, gamma)
        caps = torch.full_like(at[:, 0], gamma) if self.caps is None else self.caps
        caps = caps.masked_fill(has_some[:, 0], 0)
        self.spent = 0
        if not bool((caps > 0)[self.target.context.active].any()):
            return mine
        self.abilities[0].cap(caps)
        theirs = self._ask(gamma, sampling, noise, at).cut(caps).usable(self.target.vocab_size)
        return joined(mine, widened(theirs, gamma), has_some, self.target.vocab_size)

    def _ask(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        draft = self.sessions[0].propose(gamma, sampling, noise, at)
        self.spent = self.abilities[0].spent
        return draft

    def _points(self, known: Mapping[int, Sequence[int]], gamma: int) -> tuple[Draft, Tensor]:
        """Guesses by row as a draft, and which rows have some [B, 1]."""
        tokens = torch.zeros((self.rows, gamma), dtype=torch.int64)
        lengths = torch.zeros((self.rows, 1), dtype=torch.int64)
        for row, given in known.items():
            guesses = list(takewhile(lambda token: 0 <= token < self.target.vocab_size, given))
            tokens[row, : len(guesses)] = torch.tensor(guesses, dtype=torch.int64)
            lengths[row] = len(guesses)
        proposed, device = torch.arange(gamma) < lengths, self.target.device
        return Draft(tokens.to(device), None, proposed.to(device)), (lengths > 0).to(device)
