"""What is asked of the loop, and what it tells of every run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outrider.core.protocols import Source
from outrider.decoding.stopping import Row, Stopping


@dataclass(frozen=True)
class Request:
    """One sequence to generate."""

    prompt: tuple[int, ...]
    stopping: Stopping
    seed: int = 0
    source: Source | None = None

    @property
    def opening(self) -> str:
        """How the prompt begins, for errors: as text where the request can decode it and it is not mere noise."""
        tokens = list(self.prompt if self.source is None or isinstance(self.source, Tensor) else self.source)
        shown = f"tokens {tokens[:8]}".replace("]", ", ...]" if len(tokens) > 8 else "]")
        if self.stopping.decode is None:
            return shown
        try:
            text = self.stopping.decode(tokens[:32])
        except Exception:  # tokens outside the vocabulary are one reason to be here
            return shown
        return f"{text[:40]!r}{'...' if len(text) > 40 or len(tokens) > 32 else ''}"


@dataclass(frozen=True)
class Event:
    """What a target run added to one request."""

    index: int  # of the request
    tokens: tuple[int, ...]
    accepted: int  # how many of them were guesses
    row: Row  # everything so far
