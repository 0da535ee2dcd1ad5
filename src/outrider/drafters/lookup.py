"""Tables that are looked up: what may follow a text, as the few tokens that did, not as a table of the vocabulary.

On a host that may read values for nothing (a CPU) a guess then takes microseconds. The guesses are those of the same
table over the whole vocabulary. A row's q depends on nothing but its text: not on what other rows may go on with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.noise import Noise, vocabulary_counter
from outrider.core.numpy_ops import whole
from outrider.core.protocols import Draft
from outrider.core.sampling import Sampling
from outrider.drafters.base import TableSession
from outrider.drafters.fallback import joined, widened
from outrider.drafters.matching import Tokens


@dataclass(frozen=True)
class Followers:
    """What may come next."""

    tokens: Tokens | None  # [N] ascending; None: all of the vocabulary
    counts: Tokens  # [N] float32, at least one of them above zero

    @property
    def likeliest(self) -> int:
        """The first of equals."""
        best = int(self.counts.argmax())
        return best if self.tokens is None else int(self.tokens[best])

    def q(self, temperature: float) -> Tokens:
        """[N] float32."""
        if temperature == 1:
            return np.asarray(self.counts / self.counts.sum(dtype=np.float64), np.float32)
        logs = np.log(self.counts.astype(np.float64), where=self.counts > 0, out=np.full(len(self.counts), -np.inf))
        weights = np.exp((logs - logs.max()) / temperature)
        return np.asarray(weights / weights.sum(), np.float32)


class LookupSession(TableSession):
    """Subclasses write ``weights`` for a device and for options that need all logits, and ``followers`` for the host.

    The two say the same.
    """

    @abstractmethod
    def followers(self, text: Tokens, guesses: Sequence[int]) -> Followers | None:
        """What may follow a row's committed text and guesses behind it; None where nothing is known."""

    def likeliest(self, text: Tokens, guesses: Sequence[int]) -> int | None:
        """The first of the tokens that followed most often: the guess at temperature 0."""
        found = self.followers(text, guesses)
        return None if found is None else found.likeliest

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        if gamma == 0 or not host_sync.free(self.context.device):
            return super().propose(gamma, sampling, noise, at)
        own = [sampling.of_row(row) for row in range(self.context.rows)]
        plain = [not (one.adjusts or one.filters) for one in own]  # each row goes its own way, whoever is beside it
        if not any(plain):
            return super().propose(gamma, sampling, noise, at)
        if all(plain) and sampling.greedy:
            return self._points(gamma)
        quick = [one if way else None for one, way in zip(own, plain, strict=True)]
        mine = self._drawn(gamma, quick, noise, at)
        if all(plain):
            return mine
        theirs = super().propose(gamma, sampling, noise, at)
        return joined(widened(mine, gamma), widened(theirs, gamma), torch.tensor(plain)[:, None], self.vocab_size)

    def _texts(self) -> list[Tokens | None]:
        """The committed text of each row; None: it is not in use."""
        held, active = self.context.tokens.numpy(), self.context.active.tolist()
        return [held[row, :n] if active[row] else None for row, n in enumerate(self.context.lengths.tolist())]

    def _points(self, gamma: int) -> Draft:
        """At temperature 0: the likeliest tokens, as point masses."""
        rows: list[list[int]] = []
        for text in self._texts():
            guesses: list[int] = []
            while text is not None and len(guesses) < gamma and (token := self.likeliest(text, guesses)) is not None:
                guesses.append(token)
            rows.append(guesses)
        widest = max(map(len, rows))
        if widest == 0:
            return Draft.empty(len(rows), self.context.device)
        tokens = whole(np.array([guesses + [0] * (widest - len(guesses)) for guesses in rows]))
        return Draft(tokens, None, torch.from_numpy(np.arange(widest) < np.array([[len(g)] for g in rows])))

    def _drawn(self, gamma: int, options: Sequence[Sampling | None], noise: Noise, at: Tensor) -> Draft:
        """Row by row, each guess over the tokens that may follow; no guesses for a row without options."""
        known_by = vocabulary_counter(self.vocab_size, self.context.device).numpy()
        winner, rows = noise.winner_on_host("token", at[:, :gamma]), []
        for row, text in enumerate(self._texts()):
            path, own = RowGuesses([], []), options[row]
            while text is not None and own is not None and len(path.tokens) < gamma:
                found = self.followers(text, path.tokens)
                if found is None:
                    break
                if own.greedy:
                    path.tokens.append(found.likeliest)
                    path.tables.append((np.array([found.likeliest]), np.ones(1, np.float32)))
                    continue
                q = found.q(own.temperature)
                counter = known_by[: len(q)] if found.tokens is None else known_by[found.tokens]
                place = winner(row, len(path.tokens), q, counter)
                path.tokens.append(place if found.tokens is None else int(found.tokens[place]))
                path.tables.append((found.tokens, q))
            rows.append(path)
        return draft_of(rows, self.vocab_size)


@dataclass(frozen=True)
class RowGuesses:
    """A row's guesses, and for each what it was drawn from: tokens, None for all of the vocabulary, and q."""

    tokens: list[int]
    tables: list[tuple[Tokens | None, Tokens]]


def draft_of(rows: Sequence[RowGuesses], vocab_size: int) -> Draft:
    """Guesses of rows as one draft, whose q is about the tokens that any of them was drawn among."""
    widest = max(len(row.tokens) for row in rows)
    if widest == 0:
        return Draft.empty(len(rows), torch.device("cpu"))
    tables = [table for row in rows for table in row.tables]
    few = [tokens for tokens, _ in tables if tokens is not None]
    support: Tokens | None = reduce(np.union1d, few) if len(few) == len(tables) else None
    tokens = np.zeros((len(rows), widest), np.int64)
    probs = np.zeros((len(rows), widest, vocab_size if support is None else len(support)), np.float32)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = row.tokens
        for k, (about, q) in enumerate(row.tables):
            places = np.arange(len(q)) if about is None else about
            probs[number, k, places if support is None else np.searchsorted(support, places)] = q
    made = np.array([[len(row.tokens)] for row in rows])
    known = None if support is None else whole(support)
    return Draft(whole(tokens), torch.from_numpy(probs), torch.from_numpy(np.arange(widest) < made), support=known)
