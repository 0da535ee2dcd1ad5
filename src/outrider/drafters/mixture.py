"""Copying where a match is worth more than a model's guesses, the model elsewhere, nothing where neither pays.

For every row and run the candidates are compared by expected tokens over expected cost: 1 + a + a^2 + ... for as
many guesses as a candidate has, a being its acceptance on this row so far. Copies are told apart by the length of
the match they rest on. What is counted is how far the committed text followed the guesses: nothing that was
discarded is looked at, nor any other row, since both may share the noise of draws still to come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.fallback import joined, widened
from outrider.errors import require
from outrider.fading import FADE, PRIOR_WEIGHT
from outrider.noise import Noise
from outrider.sampling import Sampling
from outrider.trace import Level
from outrider.types import Draft, Drafter, DraftSession, Session, Shape, Source, forkable

BUCKETS = (3, 5, 8)
"""Matches of at least this many tokens are counted together up to the next bound; shorter ones are the first kind."""

PRIORS = {0.0: (0.4, 0.55, 0.8, 0.9), 1.0: (0.25, 0.4, 0.5, 0.7)}
"""Acceptance of a copied token by kind of match before a row has shown any, greedy and at temperature 1."""

MODEL_PRIOR = 0.5
"""Acceptance of the other drafter before anything is known."""


class Mixture:
    """``first`` costs nothing and says nothing now and then (copying); ``second`` costs ``cost`` runs per guess."""

    plans = True
    """It limits its guesses itself: ask it for all there is room for."""

    def __init__(self, first: Drafter, second: Drafter, cost: float | None = None) -> None:
        self.first, self.second = first, second
        self.name = f"{first.name}+{second.name}"
        self.second_cost = float(getattr(second, "cost", 0.05)) if cost is None else cost
        require(self.second_cost >= 0, f"cost must be 0 or more target runs per guess, got {cost!r}")
        self.cost = 0.005  # of asking, per guess; what the second one costs is weighed inside

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _MixtureSession(self, rows, shape, target)


class _MixtureSession:
    def __init__(self, drafter: Mixture, rows: int, shape: Shape, target: Session) -> None:
        self.first: Any = drafter.first.start(rows, shape, target)
        self.second = drafter.second.start(rows, shape, target)
        self.vocab_size = target.vocab_size
        # On a GPU asking who wants the second drafter costs a wait, so it runs anyway and its guesses are free.
        self.on_cpu = target.device.type == "cpu"
        self.cost = drafter.second_cost if self.on_cpu else 0.0
        self.stops = bool(getattr(drafter.second, "plans", False))
        kinds = len(BUCKETS) + 2  # of match, and the second drafter last
        self.kept = torch.zeros((rows, kinds), device=target.device)  # guesses the text followed
        self.tried = torch.zeros((rows, kinds), device=target.device)
        self.kind = torch.zeros(rows, dtype=torch.int64, device=target.device)  # behind the last draft
        self.last = Draft.empty(rows, target.device)
        # Sent to the device once: a step that sends something cannot be recorded (models/graphs.py).
        self.cold, self.warm = (torch.tensor((*PRIORS[t], MODEL_PRIOR), device=target.device) for t in (0.0, 1.0))
        self.bounds = torch.tensor(BUCKETS, device=target.device)

    @property
    def recordable(self) -> bool:
        return not self.on_cpu and all(getattr(session, "recordable", False) for session in self.sessions)

    @property
    def sessions(self) -> tuple[DraftSession, DraftSession]:
        return self.first, self.second

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """What changes from step to step besides the sessions."""
        return self.kept, self.tried

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.kept[row], self.tried[row] = 0, 0
        for session in (self.first, self.second):
            session.admit(row, prompt, source)

    def release(self, row: int) -> None:
        for session in (self.first, self.second):
            session.release(row)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        self.last = Draft.empty(len(self.kind), at.device)
        if gamma == 0:
            return self.last
        copied = self.first.propose(gamma, sampling, noise, at)
        if self.on_cpu:
            self.last = self._propose_on_host(copied, gamma, sampling, noise, at)
            return self.last
        copied = widened(copied, gamma)
        worth, wanted, kind = self._weigh(copied, gamma, sampling)
        use_first = worth >= wanted.amax(1)  # [B]
        guesses = torch.where(use_first, 0, wanted.argmax(1))  # of the second drafter
        self.kind = torch.where(use_first, kind, self.tried.shape[1] - 1)
        second = widened(self.second.propose(gamma, sampling, noise, at), gamma)
        self.last = joined(copied, second.cut(guesses), use_first[:, None], self.vocab_size)
        return self.last

    def _propose_on_host(self, copied: Draft, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        """The same choice where nothing has to wait for an answer, and small tensors cost more than they hold."""
        kinds, guesses = zip(*self._choose(copied, gamma, sampling), strict=True)
        self.kind, most = torch.tensor(kinds), max(guesses)
        draft = copied
        if most > 0:
            second = self.second.propose(most, sampling, noise, at[:, : most + 1])
            alike = min(guesses) == most
            draft = second if alike else self._mixed(copied, second, guesses)
        # Columns nobody uses would be standardised and verified.
        return draft.narrow(int(draft.proposed.sum(1).max())) if draft.tokens.shape[1] else draft

    def _mixed(self, copied: Draft, second: Draft, guesses: Sequence[int]) -> Draft:
        width = max(copied.tokens.shape[1], second.tokens.shape[1])
        most = torch.tensor(guesses)
        return joined(widened(copied, width), widened(second, width).cut(most), (most == 0)[:, None], self.vocab_size)

    def _choose(self, copied: Draft, gamma: int, sampling: Sampling) -> Iterator[tuple[int, int]]:
        """For every row the kind of what is drafted, and how many guesses the second drafter is asked for: 0, a copy
        (or nothing, where there is none)."""
        warmth = min(sampling.temperature, 1.0)
        priors = [c + warmth * (w - c) for c, w in zip(PRIORS[0.0], PRIORS[1.0], strict=True)] + [MODEL_PRIOR]
        lengths = copied.proposed.sum(1).tolist()
        matched = getattr(self.first, "matched", self.kind.new_zeros(len(lengths))).tolist()
        for row, (length, match) in enumerate(zip(lengths, matched, strict=True)):
            seen = zip(self.kept[row].tolist(), self.tried[row].tolist(), priors, strict=True)
            rates = [(kept + PRIOR_WEIGHT * prior) / (tried + PRIOR_WEIGHT) for kept, tried, prior in seen]
            kind = bisect_right(BUCKETS, match)
            worth = sum(rates[kind] ** k for k in range(length + 1)) if length else 0.0
            tokens = list(accumulate(rates[-1] ** k for k in range(gamma + 1)))  # 1 + a + a^2 + ...
            wanted = {k: tokens[k] / (1 + self.cost * (tokens[k] if self.stops else k)) for k in self._lengths(gamma)}
            best = max(wanted, key=lambda k: wanted[k])
            yield (kind, 0) if worth >= wanted[best] else (len(rates) - 1, best)

    def _lengths(self, gamma: int) -> Sequence[int]:
        """One that stops by itself makes about as many guesses as it gives tokens, and asking for few gains nothing."""
        return (0, gamma) if self.stops else range(gamma + 1)

    def _weigh(self, copied: Draft, gamma: int, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens per cost of the copy [B] and of 0..gamma guesses of the second [B, G+1]; the kind of match [B]."""
        prior = self.cold + min(sampling.temperature, 1.0) * (self.warm - self.cold)
        rate = (self.kept + PRIOR_WEIGHT * prior) / (self.tried + PRIOR_WEIGHT)  # [B, kinds]
        matched = getattr(self.first, "matched", torch.zeros_like(self.kind))
        kind = torch.bucketize(matched, self.bounds, right=True)  # [B]
        place = torch.arange(gamma + 1, device=rate.device)  # guesses 0..G
        tokens = (rate[..., None] ** place).cumsum(-1)  # [B, kinds, G+1]: 1 + a + a^2 + ...
        length = copied.proposed.sum(1)  # [B]
        worth = tokens.gather(1, kind[:, None, None].expand(-1, 1, gamma + 1))[:, 0].gather(1, length[:, None])[:, 0]
        worth = torch.where(length > 0, worth, 0.0)  # nothing to copy: the second drafter decides, be it for none
        second = tokens[:, -1]  # [B, G+1]
        if self.stops:  # see _lengths
            return worth, torch.where((place == 0) | (place == gamma), second / (1 + self.cost * second), 0.0), kind
        return worth, second / (1 + self.cost * place), kind

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        self._learn(tokens, count)
        for session in (self.first, self.second):
            session.commit(tokens, count)

    def _learn(self, tokens: Tensor, count: Tensor) -> None:
        """Count the guesses the text followed, and the first it did not, if the text is that long."""
        if self.on_cpu:
            self._learn_on_host(tokens.tolist(), count.tolist())
            return
        width = min(self.last.tokens.shape[1], tokens.shape[1])
        place = torch.arange(width, device=tokens.device)
        seen = self.last.proposed[:, :width] & (place < count[:, None])  # [B, G]
        followed = (seen & (tokens[:, :width] == self.last.tokens[:, :width])).to(torch.int64).cumprod(1).sum(1)
        tried = torch.minimum(followed + 1, seen.sum(1))
        place_of = torch.arange(self.tried.shape[1], device=tokens.device) == self.kind[:, None]  # [B, kinds]
        self.kept.copy_(self.kept * FADE + place_of * followed[:, None])
        self.tried.copy_(self.tried * FADE + place_of * tried[:, None])

    def _learn_on_host(self, tokens: list[list[int]], count: list[int]) -> None:
        # Used or not, a kind fades: a candidate that failed gets another chance.
        kept, tried = (seen.mul_(FADE).numpy() for seen in self.learned)
        drafted = zip(self.last.tokens.tolist(), self.last.proposed.sum(1).tolist(), self.kind.tolist(), strict=True)
        for row, (guesses, proposed, kind) in enumerate(drafted):
            seen = min(proposed, count[row])
            followed = next((k for k in range(seen) if guesses[k] != tokens[row][k]), seen)
            kept[row, kind] += followed
            tried[row, kind] += min(followed + 1, seen)

    @property
    def levels(self) -> tuple[Level, ...]:
        return tuple(level for session in (self.first, self.second) for level in getattr(session, "levels", ()))

    def rewind(self, lengths: Tensor) -> None:
        # What was learnt rests on tokens that were only believed: a choice that remembered them could bias the law.
        self.kept.zero_()
        self.tried.zero_()
        self.last = Draft.empty(len(self.kind), lengths.device)
        for session in (self.first, self.second):
            session.rewind(lengths)

    def select(self, rows: Tensor) -> None:
        self._select(rows)
        for session in (self.first, self.second):
            session.select(rows)

    def fork(self, rows: Tensor) -> _MixtureSession:
        other = copy(self)
        other._select(rows)
        other.first, other.second = (forkable(session).fork(rows) for session in (self.first, self.second))
        return other

    def _select(self, rows: Tensor) -> None:
        for name in ("kept", "tried", "kind"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        self.last = Draft.empty(len(rows), rows.device)
