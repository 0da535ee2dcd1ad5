"""A trained head prepared for one target: each backend's weights are made once, for all sessions."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from outrider.core.protocols import Session, Shape
from outrider.drafters.head.backend import HeadBackend, HeadWeights, OutputRows
from outrider.drafters.head.backends import BY_NAME
from outrider.drafters.head.choice import BackendChoice, choose, choose_for_any_rows
from outrider.drafters.head.layers import Head


class PreparedHead:
    """Weights by the backend that reads them, made when they are first used."""

    def __init__(self, head: Head, tokens: Tensor, target: Session) -> None:
        assert target.unembedding is not None
        self._head, self._target = head, target.unembedding
        self.config = head.config
        tokens = tokens.to(target.device).sort().values  # in the vocabulary's order: of equal logits the first one wins
        self.output = OutputRows(target.unembedding.detach(), tokens)
        self.weights: dict[str, HeadWeights] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        return () if self.config.blockwise else self.config.layers

    def fits(self, target: Session) -> bool:
        return self._target is target.unembedding

    def choice(self, rows: int) -> BackendChoice:
        return choose(self.config, self.output.device, rows, self.output.dtype)

    def start(self, rows: int, shape: Shape) -> HeadBackend:
        """The backend for a session with so many rows."""
        return self._start(self.choice(rows).backend, rows, shape)

    def _start(self, name: str, rows: int, shape: Shape) -> HeadBackend:
        if name not in self.weights:
            self.weights[name] = BY_NAME[name](self._head, self.output)
        return self.weights[name].start(rows, shape, several=partial(self._start_several, rows, shape))

    def _start_several(self, rows: int, shape: Shape) -> HeadBackend:
        name = choose_for_any_rows(self.config, self.output.device, self.output.dtype).backend
        return self._start(name, rows, shape)
