"""How a mixture weighs a copy against the guesses of a second drafter: by the tokens each promises to gain on a row.

A copy is taken at once, for nothing, or checked first: the second drafter makes one guess, and where that is the
copy's first token, the rest of the copy follows it. Two drafters that know nothing of each other and agree are mostly
right: with SmolLM2 at temperature 0, behind a match of two tokens, 85 % of copies that its head agrees with, and 15 %
of the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.draft import Draft
from outrider.core.noise import Noise
from outrider.core.prices import Prices
from outrider.core.sampling import Sampling, SamplingByRow

BUCKETS = (3, 5, 8)
"""Matches of at least this many tokens are counted together up to the next bound; shorter ones are the first kind."""

PRIORS = {0.0: (0.4, 0.55, 0.8, 0.9, 0.85, 0.6), 1.0: (0.2, 0.3, 0.5, 0.75, 0.6, 0.55)}
"""Acceptance before a row has shown any, greedy and at temperature 1: of a copied token by kind of match, of one behind
a guess on which both agree, and of a guess of the second drafter."""

KINDS = len(PRIORS[0.0])
AGREED, SECOND = KINDS - 2, KINDS - 1


def kind_of(match: int) -> int:
    """By how many tokens a copy's match has."""
    return bisect_right(BUCKETS, match)


def priors_at(temperature: float) -> list[float]:
    """By kind: between those of temperature 0 and 1; hotter rows have the latter."""
    warmth = min(temperature, 1.0)
    return [cold + warmth * (warm - cold) for cold, warm in zip(PRIORS[0.0], PRIORS[1.0], strict=True)]


def warmth(sampling: Sampling, rows: int, device: torch.device) -> Tensor | float:
    """How far from temperature 0 to 1; [B, 1] where rows have options of their own, whose steps are not captured."""
    if not isinstance(sampling, SamplingByRow):
        return min(sampling.temperature, 1.0)
    own = [min(sampling.of_row(row).temperature, 1.0) for row in range(rows)]
    return torch.tensor(own, device=device)[:, None]


class RowChoice(NamedTuple):
    """What a row drafts with: a copy, the second drafter, both, or nothing."""

    kind: int  # of match, where the copy is taken at once; else SECOND
    copied: int  # guesses of the copy; behind a first guess that agrees, that one included, where others are asked for
    asked: int  # guesses asked of the second drafter


def choose(prices: Prices, row: int, rates: Sequence[float], kind: int, length: int, most: int) -> RowChoice:
    """``rates``: acceptance by kind; ``kind``, ``length``: of the copy; ``most``: guesses of the second drafter."""
    at_once, worth = prices.best(row, rates[kind], length, free=True)
    asked, wanted = prices.best(row, rates[SECOND], most)
    both = max(rates[kind], (rates[kind] + rates[AGREED]) / 2)  # that both agree says most of the first token
    checked, gain = prices.best(row, both, min(length, most), free=True)
    sure = gain - prices.rates[row] * (prices.ladder.drafts[1] - prices.ladder.drafts[0]) if checked > 1 else 0.0
    expected = wanted + rates[kind] * max(0.0, sure - wanted)  # both agree about as often as such copies are right
    if at_once and worth >= expected:
        return RowChoice(kind, at_once, 0)
    return RowChoice(SECOND, checked, max(asked, 1)) if sure > wanted else RowChoice(SECOND, 0, asked)


def followed_and_tried(guesses: Sequence[int], text: Sequence[int]) -> tuple[int, int]:
    """Guesses that the text followed, and those whose fate it decided: the first wrong one too, if it is that long."""
    seen = min(len(guesses), len(text))
    followed = next((k for k in range(seen) if guesses[k] != text[k]), seen)
    return followed, min(followed + 1, seen)


def copied_lengths(copied: Draft, most: Tensor, noise: Noise) -> Tensor:
    """Guesses of a copy that it is weighed by [B], no more than most [B].

    Where they were drawn, and not with the target's own noise, how many there are follows from the draws: whether they
    count must not, or those that do would have another distribution than q. Then those are weighed that there may be.
    """
    if copied.probs is None or noise.is_the_targets:
        return copied.proposed.sum(1)
    return copied.proposed[:, :1].sum(1) * most


def expected_gain(chance: Tensor, place: Tensor) -> Tensor:
    """a + a^2 + ... for 0, 1, 2, ... guesses [G+1], each kept with chance a [B] -> [B, G+1]."""
    return (chance[:, None] ** place).cumsum(1) - 1


def followed_in_rows(draft: Draft, tokens: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """``followed_and_tried`` for all rows at once, [B] each."""
    width = min(draft.tokens.shape[1], tokens.shape[1])
    place = torch.arange(width, device=tokens.device)
    seen = draft.proposed[:, :width] & (place < count[:, None])  # [B, G]
    followed = (seen & (tokens[:, :width] == draft.tokens[:, :width])).to(torch.int64).cumprod(1).sum(1)
    return followed, torch.minimum(followed + 1, seen.sum(1))
