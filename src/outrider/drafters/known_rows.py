"""What drafters share that know the guesses of some rows, and ask another drafter for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, DraftSession, Session
from outrider.core.sampling import Sampling
from outrider.drafters.composite import CompositeSession
from outrider.drafters.fallback import joined, widened


class KnownRowsSession(CompositeSession):
    """Guesses that are known cost nothing: a row that has some is not drafted for by the session below."""

    caps: Tensor | None = None  # [B]: guesses a row may have; None: as many as are asked for
    spent: int | None = None  # guesses that the session below made for the last draft

    def __init__(self, other: DraftSession, rows: int, target: Session) -> None:
        super().__init__(other)
        self.rows, self.target = rows, target

    @property
    def capturable(self) -> bool:
        return False  # which rows have guesses is known to the host

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
        for row, guesses in known.items():
            tokens[row, : len(guesses)] = torch.tensor(guesses)
            lengths[row] = len(guesses)
        proposed, device = torch.arange(gamma) < lengths, self.target.device
        return Draft(tokens.to(device), None, proposed.to(device)), (lengths > 0).to(device)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.rows, self.caps = len(rows), None
