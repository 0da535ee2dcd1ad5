"""Copying where a match is worth more than a model's guesses, the model elsewhere, nothing where neither pays.

For every row and run the candidates are compared by the tokens they should gain, a + a^2 + ... for as many guesses
as pay, less what their time is worth; a is a candidate's acceptance on this row so far. Copies are told apart by the
length of the match they rest on. What is counted is how far the committed text followed the guesses: nothing that
was discarded is looked at, nor any other row, since both may share the noise of draws still to come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.prices import Ladder, Prices
from outrider.core.protocols import Admission, Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits, declared_cost, traits_of
from outrider.drafters.composite import CompositeSession
from outrider.drafters.experience import FADE, PRIOR_WEIGHT
from outrider.drafters.fallback import chosen_match, joined, widened
from outrider.errors import require

BUCKETS = (3, 5, 8)
"""Matches of at least this many tokens are counted together up to the next bound; shorter ones are the first kind."""

PRIORS = {0.0: (0.4, 0.55, 0.8, 0.9, 0.6), 1.0: (0.25, 0.4, 0.5, 0.7, 0.5)}
"""Acceptance before a row has shown any, greedy and at temperature 1: of a copied token by kind of match, and last of
a guess of the second drafter."""


class Mixture:
    """``first`` costs nothing and says nothing now and then (copying); ``second`` costs ``cost`` runs per guess."""

    def __init__(self, first: Drafter, second: Drafter, cost: float | None = None) -> None:
        self.first, self.second = first, second
        self.name = f"{first.name}+{second.name}"
        self.cost, self.given = declared_cost(second) if cost is None else cost, cost is not None
        require(self.cost >= 0, f"cost must be 0 or more target runs per guess, got {cost!r}")

    @property
    def traits(self) -> DrafterTraits:
        """Asked, it weighs a copy, which is free, against the second drafter and against nothing. It costs what the
        second drafter's guesses do; a session goes by ``cost``: what a row drafts must not depend on how many rows
        there are."""
        second = traits_of(self.second)
        batched = None if self.given else second.batched_cost
        either = traits_of(self.first).either(second)
        return replace(either, cost=self.cost, batched_cost=batched, stops_itself=True, cheap_to_ask=True)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _MixtureSession(self, rows, shape, target)


class RowChoice(NamedTuple):
    """What a row drafts with: a copy, the second drafter, or nothing."""

    kind: int  # of match; the last: the second drafter
    copied: int  # guesses taken from the copy
    asked: int  # guesses asked of the second drafter


class _MixtureSession(CompositeSession):
    prices: Prices | None = None  # what guesses take here and time is worth, where a policy tells
    caps: Tensor | None = None  # [B]: guesses a row may have; None: as many as are asked for
    spent: int | None = 0  # guesses the second drafter made for the last draft: a copy takes no time

    def __init__(self, drafter: Mixture, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(*(one.start(rows, shape, target) for one in (drafter.first, drafter.second)))
        self.vocab_size = target.vocab_size
        # On a GPU asking who wants the second drafter costs a wait, so it runs anyway and its guesses are free.
        self.on_cpu = target.device.type == "cpu"
        self.cost = drafter.cost if self.on_cpu else 0.0
        self.stops = traits_of(drafter.second).stops_itself
        kinds = len(BUCKETS) + 2  # of match, and the second drafter last
        self.kept = torch.zeros((rows, kinds), device=target.device)  # guesses the text followed
        self.tried = torch.zeros((rows, kinds), device=target.device)
        self.kind = torch.zeros(rows, dtype=torch.int64, device=target.device)  # behind the last draft
        self.last = self.nothing = Draft.empty(rows, target.device)
        self.asked: Tensor | None = None  # [B] bool: rows that the last draft was for; None: nobody asked for one
        # Sent to the device once: a step that sends something cannot be captured (decoding/capture/graphs.py).
        self.cold, self.warm = (torch.tensor(PRIORS[t], device=target.device) for t in (0.0, 1.0))
        self.bounds = torch.tensor(BUCKETS, device=target.device)

    @property
    def first(self) -> DraftSession:
        return self.sessions[0]

    @property
    def second(self) -> DraftSession:
        return self.sessions[1]

    @property
    def capturable(self) -> bool:
        return not self.on_cpu

    @property
    def matched(self) -> Tensor | None:
        copied = self.kind < self.tried.shape[1] - 1  # [B]
        return chosen_match(copied, *(each.matched for each in self.abilities))

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """What changes from step to step besides the sessions."""
        return self.kept, self.tried

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        rows = torch.tensor([new.row for new in admissions]).to(self.kept.device)
        self.kept[rows], self.tried[rows] = 0, 0
        super().admit_all(admissions)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        self.last, self.asked = self.nothing, None
        if gamma == 0:
            return self.last
        most = torch.full_like(self.kind, gamma) if self.caps is None else self.caps.clamp(max=gamma)  # [B]
        self.asked = most > 0
        self.abilities[0].cap(self.caps)
        copied = self.first.propose(gamma, sampling, noise, at).usable(self.vocab_size).cut(self.caps)
        if self.on_cpu:
            self.last = self._propose_on_host(copied, most.tolist(), sampling, noise, at)
            return self.last
        copied = widened(copied, gamma)
        worth, wanted, kind = self._weigh(copied, most, gamma, sampling)
        use_first = worth >= wanted.amax(1)  # [B]
        guesses = torch.where(use_first, 0, self._asked(wanted, most))  # of the second drafter
        self.kind = torch.where(use_first, kind, self.tried.shape[1] - 1)
        self.abilities[1].cap(guesses)
        second = widened(self.second.propose(gamma, sampling, noise, at).usable(self.vocab_size), gamma)
        self.last = joined(copied, second.cut(guesses), use_first[:, None], self.vocab_size)
        return self.last

    def _propose_on_host(self, copied: Draft, limits: list[int], sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        """The same choice where nothing has to wait for an answer, and small tensors cost more than they hold."""
        choices = self._choose(copied, limits, sampling)
        self.kind = torch.tensor([choice.kind for choice in choices])
        most = max(choice.asked for choice in choices)
        self.spent = 0
        if most == 0 and not any(choice.copied for choice in choices):
            return self.nothing
        draft = copied.cut(torch.tensor([choice.copied for choice in choices]))
        if most > 0:
            self.abilities[1].cap(torch.tensor([choice.asked for choice in choices]))
            second = self.second.propose(most, sampling, noise, at[:, : most + 1]).usable(self.vocab_size)
            spent = self.abilities[1].spent
            self.spent = second.tokens.shape[1] if spent is None else spent
            alike = min(choice.asked for choice in choices) == most
            draft = second if alike else self._mixed(draft, second, [choice.asked for choice in choices])
        # Columns nobody uses would be standardised and verified.
        return draft.narrow(int(draft.proposed.sum(1).max())) if draft.tokens.shape[1] else draft

    def _mixed(self, copied: Draft, second: Draft, guesses: Sequence[int]) -> Draft:
        width = max(copied.tokens.shape[1], second.tokens.shape[1])
        most = torch.tensor(guesses)
        return joined(widened(copied, width), widened(second, width).cut(most), (most == 0)[:, None], self.vocab_size)

    def _choose(self, copied: Draft, limits: list[int], sampling: Sampling) -> list[RowChoice]:
        """For every row; the second drafter is told what its guesses are worth on the way."""
        warmth = min(sampling.temperature, 1.0)
        priors = [c + warmth * (w - c) for c, w in zip(PRIORS[0.0], PRIORS[1.0], strict=True)]
        lengths = copied.proposed.sum(1).tolist() if copied.tokens.shape[1] else [0] * len(limits)
        matched = [0] * len(lengths) if (known := self.abilities[0].matched) is None else known.tolist()
        prices = self.prices or self._own_prices(len(lengths), max(limits))
        choices, chances, alphas = [], [], []
        all_kept, all_tried = self.kept.tolist(), self.tried.tolist()
        for row, (length, match, most) in enumerate(zip(lengths, matched, limits, strict=True)):
            seen = zip(all_kept[row], all_tried[row], priors, strict=True)
            rates = [(kept + PRIOR_WEIGHT * prior) / (tried + PRIOR_WEIGHT) for kept, tried, prior in seen]
            if prices.weights is not None:  # what other rows have shown counts, too
                rates[-1] = min(rates[-1], prices.alphas[row])
            kind = bisect_right(BUCKETS, match)
            copies, worth = prices.best(row, rates[kind], length, free=True)
            asked, wanted = prices.best(row, rates[-1], most)
            copy = copies > 0 and worth >= wanted
            choices.append(RowChoice(kind, copies, 0) if copy else RowChoice(len(rates) - 1, 0, asked))
            chances.append(rates[choices[-1].kind])
            alphas.append(rates[-1])
        if prices.weights is not None:
            copied_most, asked_most = zip(*((choice.copied, choice.asked) for choice in choices), strict=True)
            top = prices.together(chances, copied_most, asked_most)
            choices = [RowChoice(kind, min(copies, top), min(asked, top)) for kind, copies, asked in choices]
        if self.stops:
            choices = [
                choice._replace(asked=min(choice.asked, 1) * most) for choice, most in zip(choices, limits, strict=True)
            ]
        self.abilities[1].price(None if self.prices is None else replace(self.prices, alphas=alphas))
        return choices

    def _own_prices(self, rows: int, gamma: int) -> Prices:
        """Where nobody tells: what the second drafter declares, rows of a run for nothing, and the speed of plain
        decoding."""
        costs = tuple(self.cost * k for k in range(gamma + 1))
        return Prices(Ladder((1.0,) * (gamma + 1), costs), [1.0] * rows, [])

    def _asked(self, wanted: Tensor, most: Tensor) -> Tensor:
        """Of the second drafter, by what 0..gamma guesses gain [B, G+1]: all the row may have if it stops itself."""
        best = wanted.argmax(1)
        return torch.where(best > 0, most, 0) if self.stops else best

    def _weigh(self, copied: Draft, most: Tensor, gamma: int, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens gained by the copy [B] and by 0..gamma guesses of the second [B, G+1]; the kind of match [B].

        No row may have more than most [B] of them: more gain it nothing at all.
        ``_choose`` with its own prices, for all rows at once.
        """
        prior = self.cold + min(sampling.temperature, 1.0) * (self.warm - self.cold)
        rate = (self.kept + PRIOR_WEIGHT * prior) / (self.tried + PRIOR_WEIGHT)  # [B, kinds]
        known = self.abilities[0].matched
        matched = torch.zeros_like(self.kind) if known is None else known
        kind = torch.bucketize(matched, self.bounds, right=True)  # [B]
        place = torch.arange(gamma + 1, device=rate.device)  # guesses 0..G
        tokens = (rate[..., None] ** place).cumsum(-1) - 1  # [B, kinds, G+1]: a + a^2 + ...
        length = copied.proposed.sum(1)  # [B]
        worth = tokens.gather(1, kind[:, None, None].expand(-1, 1, gamma + 1))[:, 0].gather(1, length[:, None])[:, 0]
        worth = torch.where(length > 0, worth, -1.0)  # nothing to copy: the second drafter decides, be it for none
        gains = tokens[:, -1] - self.cost * place
        return worth, gains.masked_fill(place > most[:, None], -torch.inf), kind

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        self._learn(tokens, count)
        self.last, self.asked = self.nothing, None  # learnt from, once: it may not be asked before the next
        super().commit(tokens, count)

    def _learn(self, tokens: Tensor, count: Tensor) -> None:
        """Count the guesses the text followed, and the first it did not, if the text is that long.

        Of rows that were asked for some, and those as far as they were verified: what a row is told while only its
        neighbours draft, and in how many pieces, must not show in what it drafts later.
        """
        if self.asked is None:
            return
        if self.on_cpu:
            self._learn_on_host(tokens.tolist(), count.tolist())
            return
        width = min(self.last.tokens.shape[1], tokens.shape[1])
        place = torch.arange(width, device=tokens.device)
        seen = self.last.proposed[:, :width] & (place < count[:, None])  # [B, G]
        followed = (seen & (tokens[:, :width] == self.last.tokens[:, :width])).to(torch.int64).cumprod(1).sum(1)
        tried = torch.minimum(followed + 1, seen.sum(1))
        place_of = torch.arange(self.tried.shape[1], device=tokens.device) == self.kind[:, None]  # [B, kinds]
        fade = torch.where(self.asked[:, None], FADE, 1.0)
        self.kept.copy_(self.kept * fade + place_of * followed[:, None])
        self.tried.copy_(self.tried * fade + place_of * tried[:, None])

    def _learn_on_host(self, tokens: list[list[int]], count: list[int]) -> None:
        # Used or not, a kind fades: a candidate that failed gets another chance.
        assert self.asked is not None
        kept, tried = (seen.mul_(torch.where(self.asked[:, None], FADE, 1.0)).numpy() for seen in self.learned)
        if self.last is self.nothing:
            return
        drafted = zip(self.last.tokens.tolist(), self.last.proposed.sum(1).tolist(), self.kind.tolist(), strict=True)
        for row, (guesses, proposed, kind) in enumerate(drafted):
            seen = min(proposed, count[row])
            followed = next((k for k in range(seen) if guesses[k] != tokens[row][k]), seen)
            kept[row, kind] += followed
            tried[row, kind] += min(followed + 1, seen)

    def rewind(self, lengths: Tensor) -> None:
        # What was learnt rests on tokens that were only believed: a choice that remembered them could bias the law.
        self.kept.zero_()
        self.tried.zero_()
        self.last, self.asked = self.nothing, None
        super().rewind(lengths)

    def select(self, rows: Tensor) -> None:
        self._select(rows)
        super().select(rows)

    def fork(self, rows: Tensor) -> Self:
        other = super().fork(rows)
        other._select(rows)
        return other

    def _select(self, rows: Tensor) -> None:
        for name in ("kept", "tried", "kind"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        self.last = self.nothing = Draft.empty(len(rows), rows.device)
        self.asked = self.caps = None
