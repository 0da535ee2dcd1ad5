"""A drafter must never be able to hurt a request: when one raises, the request goes on without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from outrider.noise import Noise
from outrider.sampling import Sampling
from outrider.types import Draft, DraftSession, Source


class Guarded:
    """A draft session that answers with no guesses once the real one has raised; ``error`` says why."""

    def __init__(self, start: Callable[[], DraftSession], rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.error: str | None = None
        self.session: DraftSession | None = None
        self.session = self._try(start)

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self._call("admit", row, prompt, source)

    def release(self, row: int) -> None:
        self._call("release", row)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        draft = self._call("propose", gamma, sampling, noise, at)
        return draft if draft is not None else Draft.empty(self.rows, self.device)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        self._call("commit", tokens, count)

    def select(self, rows: Tensor) -> None:
        self.rows = len(rows)
        self._call("select", rows)

    def _call(self, method: str, *arguments: Any) -> Any:
        return None if self.session is None else self._try(getattr(self.session, method), *arguments)

    def _try(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # whatever a drafter may raise, by design
            self.session = None
            self.error = f"{type(error).__name__}: {error}"
            warnings.warn(f"the drafter failed and is left out from here on: {self.error}", stacklevel=3)
            return None
