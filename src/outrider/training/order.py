"""Which sequences are in which training step: similar lengths together, in a new order every epoch."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from outrider.training.data import Corpus

STRIDE = 64
"""Lengths are rounded up to a multiple of it: rows of one step have one rounded length, and shapes are few."""


class Order:
    """A function of the text, the seed and the step alone, so that a resumed run goes on as it would have.

    A step has about ``batch`` rows of the text's full width: as many more of shorter ones as have as many tokens.
    """

    def __init__(self, corpus: Corpus, batch: int, seed: int) -> None:
        width = corpus.tokens.shape[1]
        lengths = (corpus.tokens >= 0).sum(1)  # [M]
        rounded = ((lengths + STRIDE - 1) // STRIDE * STRIDE).clamp(max=width)
        if corpus.sources is not None:  # what a row costs is more than its tokens
            rounded = torch.full_like(rounded, width)
        known = sorted(set(rounded.tolist()))
        self._groups = [(rounded == length).nonzero()[:, 0] for length in known]
        self._sizes = [max(1, batch * width // max(1, length)) for length in known]
        self._seed = seed
        self.steps = sum(-(-len(rows) // size) for rows, size in zip(self._groups, self._sizes, strict=True))  # a pass
        self.tokens_per_step = float(lengths.sum()) / self.steps
        self._pass = lru_cache(maxsize=2)(self._shuffled)

    def rows(self, step: int) -> list[int]:
        turn, number = divmod(step, self.steps)
        rows: list[int] = self._pass(turn)[number].tolist()
        return rows

    def _shuffled(self, turn: int) -> list[Tensor]:
        random = torch.Generator().manual_seed(self._seed * 7919 + turn)
        steps: list[Tensor] = []
        for rows, size in zip(self._groups, self._sizes, strict=True):
            steps += rows[torch.randperm(len(rows), generator=random)].split(size)
        return [steps[i] for i in torch.randperm(len(steps), generator=random).tolist()]
