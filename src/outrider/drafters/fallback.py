"""One drafter where it has something to say, another where it has not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import (
    Capped,
    Draft,
    Drafter,
    DraftSession,
    Priced,
    Session,
    Shape,
    Source,
    Spending,
    declared_cost,
    forkable,
)
from outrider.core.sampling import Sampling
from outrider.drafters.prices import Prices
from outrider.trace import Level


class Fallback:
    """``first`` decides row by row whether it drafts (its first guess is proposed); else ``second`` does."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.name = f"{first.name}+{second.name}"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        sessions = (self.first.start(rows, shape, target), self.second.start(rows, shape, target))
        # A guess that costs a run is worth asking for only as often as its drafter says.
        limits = (getattr(self.first, "gamma", shape.width), getattr(self.second, "gamma", shape.width))
        asks = target.device.type == "cpu"  # on a GPU, asking would cost a wait
        return _FallbackSession(sessions, limits, target.vocab_size, asks)

    @property
    def cost(self) -> float:
        """A guess of the dearer one: which of the two it will be is not known."""
        return max(declared_cost(self.first), declared_cost(self.second))


class _FallbackSession:
    spent: int | None = None  # guesses that both made for the last draft

    def __init__(
        self, sessions: tuple[DraftSession, DraftSession], limits: tuple[int, int], vocab_size: int, asks: bool
    ) -> None:
        self.sessions, self.limits, self.vocab_size = sessions, limits, vocab_size
        self.asks = asks  # whether anybody needs the second drafter, before it is run
        self._prices: Prices | None = None
        self._caps: Tensor | None = None

    @property
    def prices(self) -> Prices | None:
        return self._prices

    @prices.setter
    def prices(self, prices: Prices | None) -> None:
        self._prices = prices
        for session in self.sessions:
            if isinstance(session, Priced):
                session.prices = prices

    @property
    def caps(self) -> Tensor | None:
        return self._caps

    @caps.setter
    def caps(self, caps: Tensor | None) -> None:
        self._caps = caps
        for session in self.sessions:
            cap(session, caps)

    @property
    def recordable(self) -> bool:
        return not self.asks and all(getattr(session, "recordable", False) for session in self.sessions)

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        for session in self.sessions:
            session.admit(row, prompt, source)

    def release(self, row: int) -> None:
        for session in self.sessions:
            session.release(row)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        self.spent = 0
        first = self._ask(0, gamma, sampling, noise, at)
        use_first = first.proposed[:, :1]  # [B, 1]
        if gamma == 0 or (self.asks and not self._wanted(~use_first[:, 0])):
            return first
        # A row that the first drafts for is not the second's: what a neighbour makes it draft is nobody's guess.
        caps = torch.full_like(at[:, 0], gamma) if self._caps is None else self._caps
        cap(self.sessions[1], caps.masked_fill(use_first[:, 0], 0))
        return joined(first, self._ask(1, gamma, sampling, noise, at), use_first, self.vocab_size)

    def _wanted(self, silent: Tensor) -> bool:
        """Whether any row for which the first drafter is silent [B] may have guesses at all: idle slots may not."""
        return bool((silent if self._caps is None else silent & (self._caps > 0)).any())

    def _ask(self, which: int, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        asked = min(gamma, self.limits[which])
        session = self.sessions[which]
        draft = session.propose(asked, sampling, noise, at[:, : asked + 1])
        spent = session.spent if isinstance(session, Spending) else None
        self.spent = (self.spent or 0) + (draft.tokens.shape[1] if spent is None else spent)
        return widened(draft.usable(self.vocab_size), gamma)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        for session in self.sessions:
            session.commit(tokens, count)

    def rewind(self, lengths: Tensor) -> None:
        for session in self.sessions:
            session.rewind(lengths)

    @property
    def levels(self) -> tuple[Level, ...]:
        return tuple(level for session in self.sessions for level in getattr(session, "levels", ()))

    def select(self, rows: Tensor) -> None:
        for session in self.sessions:
            session.select(rows)

    def fork(self, rows: Tensor) -> _FallbackSession:
        first, second = (forkable(session).fork(rows) for session in self.sessions)
        return _FallbackSession((first, second), self.limits, self.vocab_size, self.asks)


def cap(session: DraftSession, caps: Tensor | None) -> None:
    """Tell a session how many guesses each row [B] may have, if it wants to know."""
    if isinstance(session, Capped):
        session.caps = caps


def widened(draft: Draft, gamma: int) -> Draft:
    """Fewer columns than asked for are columns where nothing is proposed."""
    missing, pad = gamma - draft.tokens.shape[1], torch.nn.functional.pad
    if missing == 0:
        return draft
    probs = None if draft.probs is None else pad(draft.probs, (0, 0, 0, missing))
    tokens, proposed = pad(draft.tokens, (0, missing)), pad(draft.proposed, (0, missing))
    return replace(draft, tokens=tokens, probs=probs, proposed=proposed)


def joined(first: Draft, second: Draft, use_first: Tensor, vocab_size: int) -> Draft:
    """Two usable drafts of one width as one: the first's rows where use_first [B, 1] says so, else the second's."""

    def dense(draft: Draft) -> Tensor:
        if (probs := draft.dense(vocab_size).probs) is not None:
            return probs
        mass = torch.zeros((*draft.tokens.shape, vocab_size), device=draft.tokens.device)
        return mass.scatter_(-1, draft.tokens[..., None], 1.0)  # one_hot would ask for the largest token

    points = first.probs is None and second.probs is None
    return Draft(
        torch.where(use_first, first.tokens, second.tokens),
        None if points else torch.where(use_first[..., None], dense(first), dense(second)),
        torch.where(use_first, first.proposed, second.proposed),
        first.by_law or second.by_law,
    )
