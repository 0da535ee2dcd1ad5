"""Where the requests of a running batch come from: a list, or a queue that others put requests into meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from outrider.decoding.request import Request
from outrider.errors import BadOption, require

Numbered = tuple[int, Request]
"""A request and the number it goes by in events and traces."""


class Inbox(Protocol):
    """Asked between two steps."""

    @property
    def waiting(self) -> bool:
        """Whether a request wants a slot."""

    def take(self, most: int) -> list[Numbered]:
        """Up to so many of those that wait, the first ones first."""

    def more(self) -> bool:
        """Asked when no row runs and nobody waits: waits for a request -> False if none will come."""

    def cancelled(self) -> set[int]:
        """Numbers of requests that run and are no longer wanted."""


class RequestList:
    """All requests are there from the start."""

    def __init__(self, requests: Iterable[Numbered]) -> None:
        self._requests = deque(requests)

    @property
    def waiting(self) -> bool:
        return bool(self._requests)

    def take(self, most: int) -> list[Numbered]:
        return [self._requests.popleft() for _ in range(min(most, len(self._requests)))]

    def more(self) -> bool:
        return False

    def cancelled(self) -> set[int]:
        return set()


class RequestQueue:
    """Requests come from other threads while a batch runs, and go as they end. ``close`` ends it when all are done."""

    def __init__(self, check: Callable[[Request], None] = lambda request: None) -> None:
        """``check`` raises for a request that the batch cannot run: whoever submits it is told at once."""
        self._check, self._requests = check, deque[Numbered]()
        self._changed = threading.Condition()
        self._next, self._closed = 0, False
        self._cancelled: set[int] = set()
        self._renewing = False

    def submit(self, request: Request, numbered: Callable[[int], None] = lambda number: None) -> int:
        """Let a request wait for a slot -> the number it goes by in events; ``numbered`` is told it before any."""
        return self.submit_all([request], [numbered])[0]

    def submit_all(self, requests: Sequence[Request], numbered: Sequence[Callable[[int], None]]) -> list[int]:
        """``submit`` for several, all or none of them. Those that find free slots are admitted together."""
        for request in requests:
            self._check(request)
        with self._changed:
            require(not self._closed, "the queue is closed; start another one", BadOption)
            numbers = range(self._next, self._next + len(requests))
            self._next = numbers.stop
            for number, told in zip(numbers, numbered, strict=True):
                told(number)
            self._requests.extend(zip(numbers, requests, strict=True))
            self._changed.notify()
            return list(numbers)

    def cancel(self, number: int) -> bool:
        """The request is no longer wanted -> whether it still waited, and is gone. One that runs leaves its slot before
        the next step, with an event whose row says "cancelled"; of one that has ended nothing happens."""
        with self._changed:
            for entry in self._requests:
                if entry[0] == number:
                    self._requests.remove(entry)
                    return True
            self._cancelled.add(number)
            return False

    def cancelled(self) -> set[int]:
        with self._changed:
            numbers, self._cancelled = self._cancelled, set()
            return numbers

    def __len__(self) -> int:
        """Requests that wait for a slot."""
        return len(self._requests)

    def numbers(self) -> set[int]:
        """Those of the requests that wait for a slot."""
        with self._changed:
            return {number for number, _ in self._requests}

    def renew(self) -> None:
        """End the batch as soon as no row runs and nobody waits; the queue stays open for the next one."""
        self._renewing = True

    def close(self) -> None:
        """No more requests: the batch ends with those there are."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    @property
    def waiting(self) -> bool:
        return bool(self._requests)

    def take(self, most: int) -> list[Numbered]:
        with self._changed:
            return [self._requests.popleft() for _ in range(min(most, len(self._requests)))]

    def more(self) -> bool:
        if self._renewing:
            self._renewing = False
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._closed)
            return bool(self._requests)

    @property
    def closed(self) -> bool:
        return self._closed
