"""Guesses among the tokens that a drafter knows, each row's by the row's own options.

Rows of a batch may have different ones. What a row's guess is drawn from must then have the bits that it has beside
rows of the same options: each group of rows is drawn as if there were no other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.context import Context
from outrider.core.noise import Noise, counter_of
from outrider.core.numpy_ops import largest
from outrider.core.sampling import Sampling, SamplingByRow, standardise


@dataclass(frozen=True)
class GuessPlace:
    """Where the next guess of every row goes."""

    context: Context
    guesses: Tensor  # [B, k]: those before it, behind the committed text
    at: Tensor  # [B, 1]: its absolute position

    def of_rows(self, rows: Tensor, options: Sampling) -> GuessPlace:
        """That of some rows [K]; their texts are copied for options that ask for tokens only."""
        context = self.context.of_rows(rows) if options.adjusts else self.context
        return GuessPlace(context, self.guesses[rows], self.at[rows])


@dataclass(frozen=True)
class KnownTokens:
    """Some tokens of a vocabulary: columns of a drafter's logits, and of the q it draws from."""

    tokens: Tensor  # [N] ascending
    counter: Tensor  # [N]: by which noise knows them
    vocab_size: int

    @staticmethod
    def of(tokens: Tensor, vocab_size: int) -> KnownTokens:
        return KnownTokens(tokens, counter_of(tokens), vocab_size)

    def draw(self, logits: Tensor, sampling: Sampling, noise: Noise, place: GuessPlace) -> tuple[Tensor, Tensor | None]:
        """By logits [B, N]: a token of each row [B] and the q it was drawn from, over the known tokens [B, N] or, where
        options ask for tokens, over the vocabulary [B, V]. At temperature 0 a point mass needs no table."""
        if isinstance(sampling, SamplingByRow):
            return self._draw_by_row(logits, sampling, noise, place)
        none = place.at[:, :0]
        if not sampling.adjusts:
            if sampling.greedy:
                return self.tokens[largest(logits)], None
            q = standardise(logits[:, None], sampling, place.context, none)
            return self.tokens[noise.winner("token", place.at, q, self.counter)[:, 0]], q[:, 0]
        dtype = torch.promote_types(logits.dtype, torch.float32)
        full = torch.full((len(logits), self.vocab_size), -torch.inf, dtype=dtype, device=logits.device)
        full[:, self.tokens] = logits.to(dtype)
        q = standardise(full[:, None], sampling, place.context.ahead(place.guesses), none)
        return noise.winner("token", place.at, q)[:, 0], q[:, 0]

    def _draw_by_row(
        self, logits: Tensor, sampling: SamplingByRow, noise: Noise, place: GuessPlace
    ) -> tuple[Tensor, Tensor]:
        """Rows of no group (empty slots) get zeros."""
        size = self.vocab_size if sampling.adjusts else len(self.tokens)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        token = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        q = torch.zeros((len(logits), size), dtype=dtype, device=logits.device)
        for options, own in sampling.groups:
            rows = torch.tensor(own, device=logits.device)
            token[rows], part = self.draw(logits[rows], options, noise.of_rows(rows), place.of_rows(rows, options))
            if part is None:
                columns = token[rows] if sampling.adjusts else torch.searchsorted(self.tokens, token[rows])
                q[rows, columns] = 1.0
            elif part.shape[1] == size:
                q[rows] = part
            else:
                q[rows[:, None], self.tokens] = part
        return token, q
