"""One drafter where it has a guess, another where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits, traits_of
from outrider.drafters.composite import CompositeSession


class Fallback:
    """``first`` decides row by row whether it drafts (its first guess is proposed); else ``second`` does."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.name = f"{first.name}+{second.name}"

    @property
    def traits(self) -> DrafterTraits:
        return traits_of(self.first).either(traits_of(self.second))

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _FallbackSession(self, rows, shape, target)


class _FallbackSession(CompositeSession):
    spent: int | None = None  # guesses that both made for the last draft
    spent_for: Sequence[int] | None = None
    caps: Tensor | None = None  # [B]: guesses a row may have; None: as many as are asked for

    def __init__(self, drafter: Fallback, rows: int, shape: Shape, target: Session) -> None:
        drafters = (drafter.first, drafter.second)
        super().__init__(*(one.start(rows, shape, target) for one in drafters))
        # A guess that costs a run is worth asking for only as often as its drafter says.
        self.limits = [traits_of(one).gamma or shape.width for one in drafters]
        self.vocab_size = target.vocab_size
        self.asks = host_sync.free(target.device)  # whether anybody needs the second drafter
        self.used_first = torch.zeros(rows, dtype=torch.bool, device=target.device)  # [B]: in the last draft

    @property
    def capturable(self) -> bool:
        return not self.asks

    @property
    def matched(self) -> Tensor | None:
        return chosen_match(self.used_first, *(each.matched for each in self.abilities))

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        self.spent = 0
        self.abilities[0].cap(self.caps)
        first = self._ask(0, gamma, sampling, noise, at)
        if gamma == 0:
            return first
        use_first = first.proposed[:, :1]  # [B, 1]
        self.used_first = use_first[:, 0]
        if self.asks and not self._wanted(~self.used_first):
            return first
        # The second drafter must not draft for rows that the first drafts for: those guesses would not be used.
        caps = torch.full_like(at[:, 0], gamma) if self.caps is None else self.caps
        self.abilities[1].cap(caps.masked_fill(self.used_first, 0))
        return joined(first, self._ask(1, gamma, sampling, noise, at), use_first, self.vocab_size)

    def _wanted(self, silent: Tensor) -> bool:
        """Whether any row for which the first drafter is silent [B] may have guesses at all: idle slots may not."""
        return bool((silent if self.caps is None else silent & (self.caps > 0)).any())

    def _ask(self, which: int, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        asked = min(gamma, self.limits[which])
        draft = self.sessions[which].propose(asked, sampling, noise, at[:, : asked + 1])
        spent = self.abilities[which].spent
        self.spent = (self.spent or 0) + (draft.tokens.shape[1] if spent is None else spent)
        return widened(draft.usable(self.vocab_size), gamma)

    def _select(self, rows: Tensor) -> None:
        self.caps, self.used_first = None, self.used_first.index_select(0, rows)


def chosen_match(use_first: Tensor, first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """How long each row's match is [B]: the first drafter's where use_first [B] says so, else the second's."""
    if first is None and second is None:
        return None
    none = torch.zeros_like(use_first, dtype=torch.int64)
    return torch.where(use_first, none if first is None else first, none if second is None else second)


def widened(draft: Draft, gamma: int) -> Draft:
    """Fewer columns than asked for are columns where nothing is proposed."""
    missing, pad = gamma - draft.tokens.shape[1], torch.nn.functional.pad
    if missing == 0:
        return draft
    probs = None if draft.probs is None else pad(draft.probs, (0, 0, 0, missing))
    tokens, proposed = pad(draft.tokens, (0, missing)), pad(draft.proposed, (0, missing))
    return replace(draft, tokens=tokens, probs=probs, proposed=proposed)


def joined(first: Draft, second: Draft, use_first: Tensor, vocab_size: int) -> Draft:
    """Two usable drafts of one width as one: the first's where use_first [B, 1 or G] says so, else the second's."""
    some = second.support is not None and second.probs is not None and second.probs.dtype == torch.float32
    if first.probs is None and some and host_sync.free(use_first.device):
        return _joined_on_support(first, second, use_first)

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
        first.by_verification or second.by_verification,
    )


def _joined_on_support(first: Draft, second: Draft, use_first: Tensor) -> Draft:
    """The same, where the first draft is of points and the second of some tokens: over those tokens and the points.

    A table of the whole vocabulary for every guess would take longer to write than the guesses took to make.
    """
    assert second.support is not None and second.probs is not None
    known, tokens = second.support.numpy(), first.tokens.tolist()
    copied = use_first.expand_as(first.tokens)  # [B, G]
    points = (copied & first.proposed).nonzero().tolist()
    given = np.array(sorted({tokens[row][k] for row, k in points}), np.int64)
    new = given[known.take(known.searchsorted(given), mode="clip") != given]  # ascending
    support = np.insert(known, np.searchsorted(known, new), new) if len(new) else known
    columns = np.arange(len(known)) + np.searchsorted(new, known) if len(new) else slice(None)
    probs = np.zeros((*second.tokens.shape, len(support)), np.float32)
    for row, k in (~copied & second.proposed).nonzero().tolist():
        probs[row, k, columns] = second.probs[row, k].numpy()
    for row, k in points:
        probs[row, k, np.searchsorted(support, tokens[row][k])] = 1.0
    return Draft(
        torch.where(use_first, first.tokens, second.tokens),
        torch.from_numpy(probs),
        torch.where(use_first, first.proposed, second.proposed),
        first.by_verification or second.by_verification,
        support=torch.from_numpy(support),
    )
