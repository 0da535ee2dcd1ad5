"""One drafter where it has something to say, another where it has not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.noise import Noise
from outrider.sampling import Sampling
from outrider.trace import Level
from outrider.types import Draft, Drafter, DraftSession, Session, Shape, Source, forkable


class Fallback:
    """``first`` decides row by row whether it drafts (its first guess is proposed); else ``second`` does."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.name = f"{first.name}+{second.name}"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        sessions = (self.first.start(rows, shape, target), self.second.start(rows, shape, target))
        # A guess that costs a run is worth asking for only as often as its drafter says.
        limits = (getattr(self.first, "gamma", shape.width), getattr(self.second, "gamma", shape.width))
        session = _FallbackSession(sessions, limits, target.vocab_size)
        session.asks = target.device.type == "cpu"  # on a GPU, asking would cost a wait
        return session


class _FallbackSession:
    def __init__(self, sessions: tuple[DraftSession, DraftSession], limits: tuple[int, int], vocab_size: int) -> None:
        self.sessions, self.limits, self.vocab_size = sessions, limits, vocab_size
        self.asks = False  # whether anybody needs the second drafter, before it is run

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
        first = self._ask(0, gamma, sampling, noise, at)
        use_first = first.proposed[:, :1]  # [B, 1]
        if gamma == 0 or (self.asks and bool(use_first.all())):
            return first
        return joined(first, self._ask(1, gamma, sampling, noise, at), use_first, self.vocab_size)

    def _ask(self, which: int, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        asked = min(gamma, self.limits[which])
        draft = self.sessions[which].propose(asked, sampling, noise, at[:, : asked + 1])
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
        return _FallbackSession((first, second), self.limits, self.vocab_size)


def widened(draft: Draft, gamma: int) -> Draft:
    """Fewer columns than asked for are columns where nothing is proposed."""
    missing, pad = gamma - draft.tokens.shape[1], torch.nn.functional.pad
    if missing == 0:
        return draft
    probs = None if draft.probs is None else pad(draft.probs, (0, 0, 0, missing))
    tokens, proposed = pad(draft.tokens, (0, missing)), pad(draft.proposed, (0, missing))
    return replace(draft, tokens=tokens, probs=probs, proposed=proposed)


def joined(first: Draft, second: Draft, use_first: Tensor, vocab_size: int) -> Draft:
    """Two usable drafts of the same width as one: the first's rows where use_first [B, 1] says so, else the second's."""

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
