"""Where the end of a text has stood before: every place of its longest match, and what followed there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.protocols import Admission, Session, Shape, Source
from outrider.drafters.base import ContextSession

Tokens = NDArray[Any]
"""Token ids [N]; less than zero: a wall that nothing matches."""

WALL = -1

LATEST = 0.5
"""What the latest place counts beyond the others: it decides between tokens that followed equally often."""


def longest_matches(text: Tokens, suffix: Tokens) -> tuple[int, Tokens]:
    """The length of the longest match of ``suffix``, which is given backwards, and all places [M] where one ends.

    Only where something follows: the end of the text itself would match trivially. Places are ascending.
    """
    ends = np.flatnonzero((text[:-1] == suffix[0]) & (text[1:] >= 0))
    length = 0
    for back, token in enumerate(suffix.tolist()):
        longer = ends[(ends >= back) & (text[ends - back] == token)]
        if not len(longer):
            break
        ends, length = longer, back + 1
    return length, ends


@dataclass(frozen=True)
class Match:
    """Places that end like a text does, in one text or several."""

    length: int  # tokens that agree
    found: tuple[tuple[Tokens, Tokens], ...]  # texts, and the places in each; something follows every place
    own: bool = False  # whether it is the row's own text, which its guesses go on

    def next(self) -> tuple[Tokens, Tokens]:
        """Tokens that followed, ascending, and how often. The latest place counts a little more."""
        after = [text[places + 1] for text, places in self.found]
        tokens, counts = np.unique(np.concatenate(after), return_counts=True)
        weights = counts.astype(np.float32)
        weights[np.searchsorted(tokens, after[-1][-1])] += LATEST
        return tokens, weights

    def behind(self, token: int) -> Match | None:
        """The places that this token followed, one further; None: nothing follows any of them."""
        going = []
        for text, places in self.found:
            ends = places[text[places + 1] == token] + 1
            text = np.append(text, token) if self.own else text
            ends = ends[ends + 1 < len(text)]
            ends = ends[text[ends + 1] >= 0]
            if len(ends):
                going.append((text, ends))
        return Match(self.length + 1, tuple(going), self.own) if going else None


class SearchingSession(ContextSession):
    """A drafting session that looks for the end of a row in the row itself and, where there is one, in its source."""

    def __init__(self, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.matched = torch.zeros(rows, dtype=torch.int64, device=self.context.device)  # [B]: behind the last draft
        self.sources = torch.full(
            (rows, shape.source_capacity), WALL, dtype=torch.int64, device=self.context.device
        )  # [B, S]

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.admit_all([Admission(row, prompt, source)])

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        self.context.admit_all([new.row for new in admissions], [new.prompt for new in admissions])
        self.sources[torch.tensor([new.row for new in admissions]).to(self.sources.device)] = WALL
        for row, source in ((new.row, new.source) for new in admissions):
            if source is not None and not isinstance(source, Tensor):  # an encoder's output has no tokens to copy
                self.sources[row, : len(source)] = torch.tensor(source, device=self.sources.device)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.sources, self.matched = self.sources.index_select(0, rows), self.matched.index_select(0, rows)


def searchable(text: Tokens, source: Tokens) -> Tokens:
    """What a row is searched in: its source, a wall, then the text."""
    return np.concatenate([source, [WALL], text]) if len(source) else text
