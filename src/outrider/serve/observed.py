"""What the server has seen lately: acceptance, gamma and speed, for its status page."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from outrider.decoding.request import Event
from outrider.runtime import timer
from outrider.trace import ratio

SECONDS = 10.0
"""How far back speed is measured."""

STEPS = 512
"""How many rows of steps acceptance and gamma are taken from."""


@dataclass
class Observed:
    """Written by the engine's thread, read by any."""

    steps: int = 0  # rows of steps so far
    last_step: float = field(default_factory=timer.now)
    _times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=4096), repr=False)
    _fates: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=STEPS), repr=False)

    def add(self, event: Event) -> None:
        self.steps += 1
        self.last_step = timer.now()
        self._times.append((self.last_step, len(event.tokens)))
        if event.record is not None:
            self._fates.append((event.record.accepted, event.record.examined, event.asked))

    @property
    def tokens_per_second(self) -> float:
        """Over the last seconds, for all requests together."""
        now = timer.now()
        recent = [(when, tokens) for when, tokens in list(self._times) if now - when <= SECONDS]
        if not recent:
            return 0.0
        return sum(tokens for _, tokens in recent) / max(now - recent[0][0], 1e-3)

    @property
    def alpha(self) -> float | None:
        """Guesses kept over guesses whose fate was decided."""
        fates = list(self._fates)
        examined = sum(examined for _, examined, _ in fates)
        return ratio(sum(kept for kept, _, _ in fates), examined) if examined else None

    @property
    def gamma(self) -> float | None:
        """Guesses asked for per run, on average."""
        fates = list(self._fates)
        return sum(asked for _, _, asked in fates) / len(fates) if fates else None
