"""Guesses at random: the drafter of last resort in Leviathan section 3.6, and the worst case for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.protocols import DraftSession, Session, Shape
from outrider.drafters.base import TableSession


class Uniform:
    """Every token equally likely."""

    name = "uniform"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _UniformSession(rows, shape, target)


class _UniformSession(TableSession):
    capturable = True

    def weights(self, guesses: Tensor) -> Tensor:
        return torch.ones((self.context.rows, self.vocab_size), device=self.context.device)
