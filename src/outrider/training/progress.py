"""Progress, time limit and Ctrl-C of a training run: an interrupt waits for the end of an optimiser step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outrider.runtime import timer
from outrider.training.slot_writer import KeepGoing

Now = Callable[[], float]
"""A clock in seconds; tests pass their own."""

LEAST_TEXTS = 8
"""Texts that a run writes whatever its time limit: with fewer there is nothing to train on and to measure."""

LEAST_TOKENS = 16
"""Tokens on average that texts have before the time limit ends them."""


@dataclass(frozen=True)
class Written:
    """How much text there is."""

    tokens: int
    wanted: int
    seconds_left: float | None  # None: not known yet


class Gathering:
    """Counts the text as it is written, reports it, and says when its time is up.

    ``limit``: seconds of writing, over all runs; ``spent``: those of earlier runs.
    """

    def __init__(
        self,
        wanted: int,
        limit: float | None = None,
        spent: float = 0.0,
        report: Callable[[Written], None] = lambda written: None,
        now: Now = timer.now,
    ) -> None:
        self.wanted, self._limit, self._spent, self._report, self._now = wanted, limit, spent, report, now
        self._began = now()
        self._tokens = self._texts = self._read = 0  # finished, and how much of it an earlier run wrote

    @property
    def seconds(self) -> float:
        return self._spent + self._now() - self._began

    @property
    def enough(self) -> bool:
        """Is there as much text as was wanted?"""
        return self._tokens >= self.wanted

    @property
    def done(self) -> bool:
        """Is there enough text, or has its time passed?"""
        return self.enough or (self._late(self._limit) and self._texts >= LEAST_TEXTS)

    def add(self, texts: int, tokens: int, *, read: bool = False) -> None:
        """Texts are finished; ``read``: an earlier run wrote them."""
        self._texts, self._tokens = self._texts + texts, self._tokens + tokens
        self._read += tokens if read else 0
        self._say(self._tokens)

    def until(self, share: float = 1.0) -> KeepGoing:
        """For one round: it may take this share of the time that is left. Its tokens are shown, not yet counted."""
        end = None if self._limit is None else self.seconds + share * max(0.0, self._limit - self.seconds)

        def keep_going(texts: int, tokens: int) -> bool:
            self._say(self._tokens + tokens)
            return not self._late(end) or tokens < LEAST_TOKENS * texts

        return keep_going

    def _late(self, end: float | None) -> bool:
        return end is not None and self.seconds >= end

    def _say(self, tokens: int) -> None:
        fresh = tokens - self._read
        left = None if fresh <= 0 else (self.wanted - tokens) * (self.seconds - self._spent) / fresh
        if self._limit is not None:
            left = min(x for x in (left, self._limit - self.seconds) if x is not None)
        self._report(Written(tokens, self.wanted, None if left is None else max(0.0, left)))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C takes effect when the block is left: half an optimiser step must not be kept."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    caught: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *given: caught.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught:
        raise KeyboardInterrupt
