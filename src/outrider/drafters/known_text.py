"""Guesses from a text that is already known, some of them spoiled: for proofs of identity and for timing."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.drafters.base import ContextSession


class KnownText:
    """Proposes ``text`` [B, T] at its absolute positions; each guess is wrong with probability ``spoiled``.

    Wrong guesses are a function of row, position and seed, so every acceptance length occurs.
    """

    name = "known text"

    def __init__(self, text: Tensor, spoiled: float) -> None:
        self.text, self.spoiled = text, spoiled

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _KnownTextSession(self, rows, shape, target)


class _KnownTextSession(ContextSession):
    capturable = True

    def __init__(self, drafter: KnownText, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.text = drafter.text.to(target.device)
        self.spoiled = drafter.spoiled
        self.noise = Noise(torch.arange(rows, device=target.device), "/spoiled")

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        if gamma == 0:
            return Draft.empty(self.context.rows, self.context.device)
        at = at[:, :gamma]
        known = at < self.text.shape[1]
        tokens = self.text.gather(1, at.clamp(max=self.text.shape[1] - 1))
        wrong = self.noise.uniform("guess", at) < self.spoiled
        tokens = torch.where(wrong, (tokens + 1) % self.vocab_size, tokens)
        proposed = (known & self.context.active[:, None]).to(torch.int64).cumprod(-1).bool()
        return Draft(tokens, None, proposed)
