"""Earlier outputs as texts to guess from: kept by owner, indexed as they come, the oldest forgotten first."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.drafters.matching import Match
from outrider.drafters.suffix_index import LONGEST, SuffixIndex
from outrider.errors import require

MOST_TOKENS = 1 << 18
"""Tokens that are remembered of all owners together, if nobody says otherwise: 2 MiB."""

_PARTS = 8
"""The oldest of so many parts is forgotten at once, and none grows beyond its share: large ones take long to sort."""


@dataclass(frozen=True)
class Remembered:
    """Outputs of one owner that are searched together."""

    index: SuffixIndex
    latest: int  # number of the latest of them

    def __len__(self) -> int:
        return len(self.index.tokens)

    def joined(self, other: Remembered) -> Remembered:
        tokens = np.concatenate([self.index.tokens, other.index.tokens])
        return Remembered(SuffixIndex.sorted(tokens), max(self.latest, other.latest))


class OutputMemory:
    """What was written, for drafters that look for it. Any thread may read while another one writes.

    What one owner's rows have written is found by that owner's rows only.
    """

    def __init__(self, most: int = MOST_TOKENS) -> None:
        require(isinstance(most, int) and most >= 1, f"most must be a whole number of tokens from 1 on, got {most!r}")
        self.most = most
        self._parts: dict[str, tuple[Remembered, ...]] = {}  # by owner, the oldest first; tuples are replaced whole
        self._count = self._size = 0  # outputs so far, and tokens now
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Tokens in it."""
        return self._size

    def add(self, owner: str, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Remember an output, and of its prompt the end, by which its beginning is found."""
        share = max(1, self.most // _PARTS)
        text = [*prompt[-LONGEST:], *output][-share:]
        if not output or len(text) < 2:
            return
        with self._lock:
            self._count += 1
            parts = [*self._parts.get(owner, ()), Remembered(SuffixIndex.of([text]), self._count)]
            # A part that is not much larger than the next is sorted anew with it: a text is sorted log2(share) times.
            while len(parts) > 1 and len(parts[-2]) <= 2 * len(parts[-1]) and len(parts[-2]) + len(parts[-1]) <= share:
                parts[-2:] = [parts[-2].joined(parts[-1])]
            self._parts[owner] = tuple(parts)
            self._size += len(text) + 1  # and a wall
            while self._size > self.most:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        owner = min(self._parts, key=lambda one: self._parts[one][0].latest)
        oldest, *left = self._parts[owner]
        self._size -= len(oldest)
        if left:
            self._parts[owner] = tuple(left)
        else:
            del self._parts[owner]

    def matches(self, owner: str, suffix: Sequence[int]) -> Match | None:
        """The longest match of a text's end, given backwards, in what this owner's rows wrote; None: there is none."""
        found = [part.index.matches(suffix) for part in self._parts.get(owner, ())]
        length = max((match.length for match in found), default=0)
        if length == 0:
            return None
        return Match(length, tuple(place for match in found if match.length == length for place in match.found))
