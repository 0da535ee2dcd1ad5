"""What a drafter hands over for verification: guesses, and the distributions they were drawn from.

B rows, G = gamma guesses, V vocabulary. p is always the target's distribution, q the draft's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.numpy_ops import loaded_kernel, whole

FEW_ROWS = 32
"""Rows that are worked on one at a time; more are quicker together."""


@dataclass(frozen=True)
class Choices:
    """p at temperature 0, where it is all on one token: that token instead of a table of the vocabulary."""

    tokens: Tensor  # [B, K] int64
    weight: Tensor  # [B, K]: one, or NaN where the logits left no choice

    def on(self, device: torch.device) -> Choices:
        return Choices(self.tokens.to(device), self.weight.to(device))


@dataclass(frozen=True)
class Draft:
    """Guesses x_1..x_G from M_q with the distributions they were really drawn from."""

    tokens: Tensor  # [B, G] int64
    probs: Tensor | None  # [B, G, V], or [B, G, N] with ``support``; None means point masses on the tokens
    proposed: Tensor  # [B, G] bool: True for a prefix of each row, False where nothing was proposed
    by_verification: bool = False  # tokens follow probs without being draw(probs, race): they were verified, not drawn
    support: Tensor | None = None  # [N] ascending: the tokens that probs are about, zero elsewhere; None: all

    @staticmethod
    def empty(rows: int, device: torch.device) -> Draft:
        """No guesses at all: gamma = 0."""
        none = torch.zeros((rows, 0), dtype=torch.int64, device=device)
        return Draft(none, None, none.bool())

    def on(self, device: torch.device) -> Draft:
        probs, support = (None if each is None else each.to(device) for each in (self.probs, self.support))
        moved = replace(self, tokens=self.tokens.to(device), proposed=self.proposed.to(device))
        return replace(moved, probs=probs, support=support)

    def cut(self, most: Tensor | None) -> Draft:
        """Each row's first most [B] guesses only. Drawing them all and keeping a prefix is drawing a prefix."""
        if most is None or self.tokens.shape[1] == 0:
            return self
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return replace(self, proposed=self.proposed & (place < most[:, None]))

    def usable(self, vocab_size: int) -> Draft:
        """Each row's guesses up to the first that is no token, or has a q that is no probability of a token drawn.

        Options may forbid all that a drafter knows (a bias of -inf, bad words, a constraint outside its vocabulary).
        Its q is NaN there, what it "drew" is nothing, and p - q would be NaN as well. NaN is the first to be drawn,
        so q of the guess itself tells. Tokens that are not proposed may be anything: they become tokens here.
        """
        if self.tokens.shape[1] == 0:
            return self
        if self.tokens.device.type == "cpu":
            return self._usable_on_host(vocab_size)
        tokens = self.tokens.clamp(0, vocab_size - 1)
        good = self.proposed & (tokens == self.tokens)
        if self.probs is not None:
            q = self._of(tokens)
            good = good & (q > 0) & (q < inf)
        return replace(self, tokens=tokens, proposed=good.to(torch.int64).cumprod(-1).bool())

    def _usable_on_host(self, vocab_size: int) -> Draft:
        """The same where looking at a few numbers costs less than comparing them all; mostly all is well."""
        tokens, proposed = self.tokens.tolist(), self.proposed.tolist()
        q_of = self.one_by_one()
        most = []
        for row, guesses in enumerate(tokens):
            good = 0
            while good < len(guesses) and proposed[row][good] and 0 <= guesses[good] < vocab_size:
                if q_of is not None and not 0 < q_of(row, good, guesses[good]) < inf:
                    break
                good += 1
            most.append(good)
        inside = all(0 <= token < vocab_size for guesses in tokens for token in guesses)
        if inside and all(sum(flags) == good for flags, good in zip(proposed, most, strict=True)):
            return self
        place = torch.arange(self.tokens.shape[1])
        return replace(
            self, tokens=self.tokens.clamp(0, vocab_size - 1), proposed=place < whole(np.array(most))[:, None]
        )

    def one_by_one(self) -> Callable[[int, int, int], Any] | None:
        """q of one token (row, guess, token), on a CPU, as numpy has it; None for point masses."""
        if self.probs is None:
            return None
        q = (self.probs.float() if self.probs.dtype == torch.bfloat16 else self.probs).numpy()  # which numpy lacks
        if self.support is None:
            return lambda row, guess, token: q[row, guess, token]
        known = self.support.numpy()

        def of(row: int, guess: int, token: int) -> Any:
            place = int(known.searchsorted(token))
            return q[row, guess, place] if place < len(known) and known[place] == token else q.dtype.type(0)

        return of

    def narrow(self, guesses: int) -> Draft:
        """The first columns only."""
        probs = None if self.probs is None else self.probs[:, :guesses]
        return replace(self, tokens=self.tokens[:, :guesses], probs=probs, proposed=self.proposed[:, :guesses])

    def of_tokens(self) -> Tensor:
        """q_i(x_i) -> [B, G]; one where nothing was proposed (it is never looked at)."""
        if self.probs is None:
            return torch.ones_like(self.tokens, dtype=torch.float32)
        return torch.where(self.proposed, self._of(self.tokens), 1.0)

    def _of(self, tokens: Tensor) -> Tensor:
        """q of tokens [B, G]."""
        assert self.probs is not None
        if self.support is None:
            return self.probs.gather(-1, tokens[..., None])[..., 0]
        place = torch.searchsorted(self.support, tokens.contiguous()).clamp(max=len(self.support) - 1)
        return self.probs.gather(-1, place[..., None])[..., 0] * (self.support[place] == tokens)

    def dense(self, vocab_size: int) -> Draft:
        """The same with probs over the whole vocabulary; point masses stay what they are."""
        if self.probs is None or self.support is None:
            return self
        whole = self.probs.new_zeros((*self.tokens.shape, vocab_size))
        return replace(self, probs=whole.index_copy_(-1, self.support, self.probs), support=None)

    def taken_from(self, p: Tensor, n: Tensor) -> Tensor:
        """max(0, p - q) for p [B, V] and q at index n [B] of each row; p itself where nothing was proposed there.

        A q of zero makes full acceptance, early stop and ragged drafts one formula. A q that is NaN or negative
        counts as zero: whatever a drafter reports, a token with p = 0 is never drawn from the rest.
        """
        rows, guesses = self.tokens.shape
        if guesses == 0:
            return p
        if self.on_host(p):
            return self._taken_on_host(p, n.tolist())
        index = n.clamp(max=guesses - 1)[:, None]  # [B, 1]
        real = (n < guesses) & self.proposed.gather(1, index)[:, 0]  # [B]
        if self.probs is None:
            return p.scatter_add(1, self.tokens.gather(1, index), -real[:, None].to(p.dtype)).clamp_(min=0)
        q = self.probs[torch.arange(rows, device=n.device), index[:, 0]].to(p.dtype)
        q = q.masked_fill_(~(real[:, None] & (q > 0)), 0)  # nor is NaN or less than nothing taken, beside the guess
        if self.support is None:
            return (p - q).clamp_(min=0)
        return p.index_copy(1, self.support, (p.index_select(1, self.support) - q).clamp_(min=0))

    def on_host(self, p: Tensor) -> bool:
        """Whether numpy can do it, a row at a time: over a vocabulary torch's threads wait longer than they work."""
        known = (torch.float32, torch.float64)
        if len(p) > FEW_ROWS or not host_sync.free(p.device):
            return False
        return p.dtype in known and (self.probs is None or self.probs.dtype in known)

    def _taken_on_host(self, p: Tensor, n: list[int]) -> Tensor:
        """``taken_from`` to the bit."""
        rest, proposed = p.clone(), self.proposed.tolist()
        for row, k in enumerate(n):
            if k >= len(proposed[row]) or not proposed[row][k]:
                continue
            left = rest[row].numpy()
            if self.probs is None:
                token = int(self.tokens[row, k])
                left[token] = np.maximum(left[token] - left.dtype.type(1), 0)
                continue
            q = self.probs[row, k].numpy().astype(left.dtype, copy=False)
            known = None if self.support is None else self.support.numpy()
            subtract = loaded_kernel("verdicts", "subtract") if left.dtype == np.float32 else None
            if known is None:
                np.maximum(np.subtract(left, np.where(q > 0, q, 0), out=left), 0, out=left)
            elif subtract is None or not subtract(left, known, q):
                left[known] = np.maximum(left.take(known) - np.where(q > 0, q, 0), 0)
        return rest

    def padded(self, like: Tensor) -> Tensor:
        """q at every index and a row of zeros behind it -> [B, G+1, V] as ``like``; zero where there is none."""
        guesses = self.tokens.shape[1]
        q = torch.zeros_like(like)
        if self.probs is None:
            q[:, :guesses].scatter_(-1, self.tokens[..., None], 1.0)
        else:
            q[:, :guesses] = cast(Tensor, self.dense(like.shape[-1]).probs)
        return q.masked_fill_(~(torch.nn.functional.pad(self.proposed, (0, 1))[..., None] & (q > 0)), 0)

    def overlap(self, p: Tensor | Choices) -> Tensor:
        """sum over x of min(p_i(x), q_i(x)), Theorem 3.5's beta, for each guess -> [B, G]."""
        guesses = self.tokens.shape[1]
        if isinstance(p, Choices):
            if guesses == 0:
                return p.weight[:, :0]
            tokens = p.tokens[:, :guesses]
            shared = self.tokens == tokens if self.probs is None else self._of(tokens)
            return (shared * p.weight[:, :guesses]).masked_fill_(~self.proposed, 0)
        if guesses and self.probs is not None and self.on_host(p):
            return self._overlap_on_host(p, self.probs)
        p = p[:, :guesses]
        if self.probs is None:
            shared = p.gather(-1, self.tokens[..., None])[..., 0].clamp(max=1)  # p/l may be above q's one
        else:
            p = p if self.support is None else p.index_select(-1, self.support)
            shared = torch.minimum(p, self.probs.to(p.dtype)).sum(-1)
        return shared.masked_fill_(~self.proposed, 0)

    def _overlap_on_host(self, p: Tensor, probs: Tensor) -> Tensor:
        """``overlap`` up to the order of summation: it is told, and decides nothing."""
        found = torch.zeros(self.tokens.shape, dtype=p.dtype)
        known = None if self.support is None else self.support.numpy()
        target, q, shared = p.numpy(), probs.numpy(), found.numpy()
        quick = loaded_kernel("verdicts", "shared") if target.dtype == q.dtype == np.float32 else None
        for row, flags in enumerate(self.proposed.tolist()):
            for k in range(sum(flags)):
                total = -1.0 if known is None or quick is None else quick(target[row, k], known, q[row, k])
                if total < 0:
                    own = target[row, k] if known is None else target[row, k].take(known)
                    total = np.minimum(own, q[row, k].astype(own.dtype, copy=False)).sum()
                shared[row, k] = total
        return found
