"""No guesses: plain decoding through the same step."""

from __future__ import annotations

from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits
from outrider.drafters.base import ContextSession


class Nothing:
    """Proposes nothing, so every target run gives one token."""

    name = "none"
    traits = DrafterTraits(point_masses=True)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _NothingSession(rows, shape, target)


class _NothingSession(ContextSession):
    capturable = True

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        return Draft.empty(self.context.rows, self.context.device)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        """Nothing to remember."""
