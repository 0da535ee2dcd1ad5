"""Copying where a match is worth more than a model's guesses, the model elsewhere, nothing where neither pays.

For every row and run the candidates are compared by the tokens they should gain (``weighing.py``): a + a^2 + ... for
as many guesses as pay, less what their time is worth; a is a candidate's acceptance on this row so far. Copies are told
apart by the length of the match they rest on. What is counted is how far the committed text followed the guesses, and
copies that were not used, which follow from the text: no draw that was discarded is looked at, nor any other row, since
both may share the noise of draws still to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.noise import Noise
from outrider.core.prices import Ladder, Prices
from outrider.core.protocols import Admission, Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits, declared_cost, traits_of
from outrider.drafters.composite import CompositeSession
from outrider.drafters.experience import FADE, PRIOR_WEIGHT
from outrider.drafters.fallback import chosen_match, joined, widened
from outrider.drafters.weighing import (
    AGREED,
    BUCKETS,
    KINDS,
    PRIORS,
    SECOND,
    RowChoice,
    choose,
    copied_lengths,
    expected_gain,
    followed_and_tried,
    followed_in_rows,
    kind_of,
    priors_at,
    warmth,
)
from outrider.errors import require


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
        batched, sampled = (None, None) if self.given else (second.batched_cost, second.sampled_cost)
        weighs = replace(traits_of(self.first).either(second), stops_itself=True, cheap_to_ask=True)
        return replace(weighs, cost=self.cost, batched_cost=batched, sampled_cost=sampled)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _MixtureSession(self, rows, shape, target)


class _MixtureSession(CompositeSession):
    prices: Prices | None = None  # what guesses take here and time is worth, where a policy tells
    caps: Tensor | None = None  # [B]: guesses a row may have; None: as many as are asked for
    spent: int | None = 0  # guesses the second drafter made for the last draft: a copy takes no time
    spent_for: Sequence[int] | None = None  # rows it made them for

    def __init__(self, drafter: Mixture, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(*(one.start(rows, shape, target) for one in (drafter.first, drafter.second)))
        self.vocab_size = target.vocab_size
        # On a GPU asking who wants the second drafter costs a wait, so it runs anyway and its guesses are free.
        self.on_cpu = host_sync.free(target.device)
        self.cost = drafter.cost if self.on_cpu else 0.0
        self.stops = traits_of(drafter.second).stops_itself
        self.kept = torch.zeros((rows, KINDS), device=target.device)  # guesses the text followed, by kind
        self.tried = torch.zeros((rows, KINDS), device=target.device)
        self.kind = torch.zeros(rows, dtype=torch.int64, device=target.device)  # of the last draft's first guess
        self.match = torch.zeros_like(self.kind)  # kind of match of the last copy, used or not
        self.agreed = torch.zeros(rows, dtype=torch.bool, device=target.device)  # a copy stands behind its first guess
        self.last = self.copied = self.nothing = Draft.empty(rows, target.device)
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
        copied = self.agreed | (self.kind < SECOND)  # [B]
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
        self.last, self.copied, self.asked = self.nothing, self.nothing, None
        if gamma == 0:
            return self.last
        most = torch.full_like(at[:, 0], gamma) if self.caps is None else self.caps.clamp(max=gamma)  # [B]
        self.asked = most > 0
        self.abilities[0].cap(self.caps)
        copied = self.first.propose(gamma, sampling, noise, at).usable(self.vocab_size).cut(self.caps)
        length = copied_lengths(copied, most, noise)
        if self.on_cpu:
            self.last = self._propose_on_host(copied, (length.tolist(), most.tolist()), sampling, noise, at)
            return self.last
        copied = widened(copied, gamma)
        use_first, checked, guesses = self._weigh(length, most, gamma, sampling)
        self.abilities[1].cap(guesses)
        second = self.second.propose(gamma, sampling, noise, at).usable(self.vocab_size).cut(guesses)
        self.last = self._join(copied, second, use_first, torch.where(checked, copied.tokens[:, 0], -1), gamma)
        self._keep(copied, use_first)
        return self.last

    def _keep(self, copied: Draft, use_first: Tensor) -> None:
        """To learn from: a copy that nobody drew is a function of the text and tells something unused; a draw that was
        discarded would tell of noise that comes again."""
        self.copied = copied if copied.probs is None else copied.cut(torch.where(use_first, copied.tokens.shape[1], 0))

    def _propose_on_host(
        self, copied: Draft, lengths: tuple[list[int], list[int]], sampling: Sampling, noise: Noise, at: Tensor
    ) -> Draft:
        """The same choice where nothing has to wait for an answer, and small tensors cost more than they hold."""
        choices = self._choose(*lengths, sampling)
        copies, guesses = [choice.copied for choice in choices], [choice.asked for choice in choices]
        self.kind, asked, most = torch.tensor([choice.kind for choice in choices]), torch.tensor(guesses), max(guesses)
        self.agreed, self.spent = torch.zeros_like(self.agreed), 0
        self.spent_for = [row for row, number in enumerate(guesses) if number]
        self._keep(copied, asked == 0)
        if most == 0 and not any(copies):
            return self.nothing
        draft = copied.cut(torch.tensor(copies)) if any(copies) else self.nothing
        if most > 0:
            first = zip(copied.tokens[:, 0].tolist() if any(copies) else copies, copies, guesses, strict=True)
            checked = [token if copies_of_row and asked_of_row else -1 for token, copies_of_row, asked_of_row in first]
            ends_behind = torch.tensor(checked) if max(checked) >= 0 else None
            self.abilities[1].cap(asked)
            self.abilities[1].end_behind(ends_behind)
            second = self.second.propose(most, sampling, noise, at[:, : most + 1]).usable(self.vocab_size)
            spent = self.abilities[1].spent
            self.spent = second.tokens.shape[1] if spent is None else spent
            second = second if min(guesses) == most else second.cut(asked)
            width = max(draft.tokens.shape[1], second.tokens.shape[1])
            draft = self._join(draft, second, asked == 0, ends_behind, width) if any(copies) else second
        # Columns nobody uses would be standardised and verified.
        return draft.narrow(int(draft.proposed.sum(1).max())) if draft.tokens.shape[1] else draft

    def _join(self, copied: Draft, second: Draft, use_first: Tensor, checked: Tensor | None, width: int) -> Draft:
        """Rows of the copy where use_first [B] says so. In others the rest of it stands behind a first guess that is
        ``checked`` [B], its first token, -1: none. That depends on a guess and those before it only."""
        copied, second = widened(copied, width), widened(second, width)
        if checked is None:
            return joined(copied, second, use_first[:, None], self.vocab_size)
        self.agreed = second.proposed[:, 0] & (second.tokens[:, 0] == checked)
        behind = torch.arange(width, device=checked.device) > 0
        return joined(copied, second, use_first[:, None] | (self.agreed[:, None] & behind), self.vocab_size)

    def _choose(self, lengths: list[int], limits: list[int], sampling: Sampling) -> list[RowChoice]:
        """For every row with a copy of such a length; the second drafter is told what its guesses are worth."""
        matched = [0] * len(lengths) if (known := self.abilities[0].matched) is None else known.tolist()
        prices = self.prices or self._own_prices(len(lengths), max(limits))
        self.match = torch.tensor([kind_of(match) for match in matched])
        choices, chances, alphas = [], [], []
        all_kept, all_tried = self.kept.tolist(), self.tried.tolist()
        for row, (length, match, most) in enumerate(zip(lengths, matched, limits, strict=True)):
            seen = zip(all_kept[row], all_tried[row], priors_at(sampling.of_row(row).temperature), strict=True)
            rates = [(kept + PRIOR_WEIGHT * prior) / (tried + PRIOR_WEIGHT) for kept, tried, prior in seen]
            if prices.weights is not None:  # what other rows have shown counts, too
                rates[SECOND] = min(rates[SECOND], prices.alphas[row])
            choices.append(choose(prices, row, rates, kind_of(match), length, most))
            chances.append(rates[choices[-1].kind])
            alphas.append(rates[SECOND])
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

    def _weigh(self, length: Tensor, most: Tensor, gamma: int, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
        """Which rows take the copy at once [B], which have it checked [B], and guesses of the second drafter [B].

        ``weighing.choose`` with its own prices, for all rows at once; length [B]: of the copy. No row may have more
        than most [B] guesses.
        """
        warm = warmth(sampling, len(length), length.device)
        prior = self.cold + warm * (self.warm - self.cold)  # [kinds], or [B, kinds]
        rate = (self.kept + PRIOR_WEIGHT * prior) / (self.tried + PRIOR_WEIGHT)  # [B, kinds]
        known = self.abilities[0].matched
        matched = torch.zeros_like(length) if known is None else known
        kind = torch.bucketize(matched, self.bounds, right=True)  # [B]
        place = torch.arange(gamma + 1, device=rate.device)  # guesses 0..G
        right = rate.gather(1, kind[:, None])[:, 0]  # [B]: of the copy
        sure = torch.maximum(right, (right + rate[:, AGREED]) / 2)
        worth, gain = (expected_gain(one, place).gather(1, length[:, None])[:, 0] for one in (right, sure))
        gains = (expected_gain(rate[:, SECOND], place) - self.cost * place).masked_fill(
            place > most[:, None], -torch.inf
        )
        wanted = gains.amax(1)
        checked = (length > 1) & (gain - self.cost > wanted)
        expected = wanted + right * torch.where(checked, gain - self.cost - wanted, 0.0)
        use_first = (length > 0) & (worth >= expected)
        checked = checked & ~use_first
        guesses = gains.argmax(1)
        guesses = torch.where(checked, guesses.clamp(min=1), guesses)
        guesses = torch.where(guesses > 0, most, 0) if self.stops else guesses
        self.kind, self.match = torch.where(use_first, kind, SECOND), kind
        return use_first, checked, torch.where(use_first, 0, guesses)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        self._learn(tokens, count)
        self.last, self.copied, self.asked = self.nothing, self.nothing, None  # learnt from, once
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
        fade = torch.where(self.asked[:, None], FADE, 1.0)
        copies, guesses = (followed_in_rows(draft, tokens, count) for draft in (self.copied, self.last))
        kinds, second = torch.arange(KINDS, device=count.device), self.kind == SECOND  # [kinds], [B]
        for seen, copy, all_guesses in zip(self.learned, copies, guesses, strict=True):
            own = torch.where(self.agreed, all_guesses.clamp(max=1), all_guesses) * second  # [B]
            behind = (all_guesses - 1).clamp(min=0) * self.agreed
            news = (kinds == self.match[:, None]) * copy[:, None]
            news = news + (kinds == SECOND) * own[:, None] + (kinds == AGREED) * behind[:, None]
            seen.copy_(seen * fade + news)

    def _learn_on_host(self, tokens: list[list[int]], count: list[int]) -> None:
        # Used or not, a kind fades: a candidate that failed gets another chance.
        assert self.asked is not None
        kept_and_tried = [seen.numpy() for seen in self.learned]
        for counts in kept_and_tried:
            counts[self.asked.numpy()] *= FADE
        drafts = [(draft.tokens.tolist(), draft.proposed.sum(1).tolist()) for draft in (self.copied, self.last)]
        seconds, matches, agreements = (each.tolist() for each in (self.kind == SECOND, self.match, self.agreed))
        for row, text in enumerate(tokens):
            copies, guesses = (followed_and_tried(made[row][: most[row]], text[: count[row]]) for made, most in drafts)
            for counts, copy, guess in zip(kept_and_tried, copies, guesses, strict=True):
                counts[row, matches[row]] += copy
                counts[row, SECOND] += seconds[row] * (min(guess, 1) if agreements[row] else guess)
                counts[row, AGREED] += agreements[row] * max(guess - 1, 0)

    def rewind(self, lengths: Tensor) -> None:
        # What was learnt rests on tokens that are taken back: a choice that remembered them could bias the text.
        self.kept.zero_()
        self.tried.zero_()
        self.last, self.copied, self.asked = self.nothing, self.nothing, None
        super().rewind(lengths)

    def _select(self, rows: Tensor) -> None:
        for name in ("kept", "tried", "kind", "match", "agreed"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        self.last = self.copied = self.nothing = Draft.empty(len(rows), rows.device)
        self.asked = self.caps = None
