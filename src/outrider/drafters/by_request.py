"""Several drafters in one batch: every request names the one that drafts for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Admission, Draft, Drafter, DraftSession, Session, Shape, admit_all
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits, traits_of
from outrider.drafters.composite import CompositeSession
from outrider.drafters.fallback import joined, widened


class ByRequest:
    """Drafters by name; the first drafts for requests that name none, and gamma is planned as for it.

    Each has slots for every row, as it may be all of them that ask for it: a model's KV cache is allocated for all. It
    is told of the rows it drafts for only, so that rows of others cost it nothing.
    """

    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        self.drafters = dict(drafters)
        self.first = next(iter(self.drafters.values()))
        self.name = self.first.name

    @property
    def traits(self) -> DrafterTraits:
        return traits_of(self.first)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        sessions = [drafter.start(rows, shape, target) for drafter in self.drafters.values()]
        return _ByRequestSession(tuple(self.drafters), sessions, rows, target)


class _ByRequestSession(CompositeSession):
    caps: Tensor | None = None  # [B]: guesses a row may have; None: as many as are asked for
    spent: int | None = None  # guesses that the one with most of them made for the last draft
    spent_for: Sequence[int] | None = None

    def __init__(self, names: Sequence[str], sessions: Sequence[DraftSession], rows: int, target: Session) -> None:
        super().__init__(*sessions)
        self.places = {name: place for place, name in enumerate(names)}
        self.vocab_size, self.device = target.vocab_size, target.device
        self.drafted_by: list[int | None] = [None] * rows  # place of each row's drafter; None: an empty slot

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        for new in admissions:
            self.drafted_by[new.row] = 0 if new.drafter is None else self.places[new.drafter]
        for place, session in enumerate(self.sessions):
            if own := [new for new in admissions if self.drafted_by[new.row] == place]:
                admit_all(session, own)

    def release(self, row: int) -> None:
        if (place := self.drafted_by[row]) is not None:
            self.sessions[place].release(row)
        self.drafted_by[row] = None

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        used = sorted({place for place in self.drafted_by if place is not None})
        if gamma == 0 or len(used) < 2:
            return self._ask(used[0] if used else 0, self.caps, gamma, sampling, noise, at)
        spent, draft = 0, widened(Draft.empty(len(self.drafted_by), self.device), gamma)
        caps = torch.full_like(at[:, 0], gamma) if self.caps is None else self.caps.clamp(max=gamma)
        for place in used:
            own = torch.tensor([by == place for by in self.drafted_by], device=self.device)  # [B]
            theirs = caps.masked_fill(~own, 0)
            if (most := int(theirs.max())) == 0:
                continue
            found = self._ask(place, theirs, most, sampling, noise, at[:, : most + 1])
            spent = max(spent, found.tokens.shape[1] if self.spent is None else self.spent)
            found = widened(found.cut(theirs).usable(self.vocab_size), gamma)
            draft = joined(draft, found, ~own[:, None], self.vocab_size)
        self.spent = spent
        return draft

    def _ask(
        self, place: int, caps: Tensor | None, gamma: int, sampling: Sampling, noise: Noise, at: Tensor
    ) -> Draft:  # fmt: skip
        self.abilities[place].cap(caps)
        draft = self.sessions[place].propose(gamma, sampling, noise, at)
        self.spent = self.abilities[place].spent
        return draft

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        for place in {place for place in self.drafted_by if place is not None}:
            self.sessions[place].commit(tokens, count)

    def _select(self, rows: Tensor) -> None:
        self.caps, self.drafted_by = None, [self.drafted_by[row] for row in rows.tolist()]
