"""A fork of a feature head's rows on a CPU: guesses behind tokens that the target has not run, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.drafters.head.backend import DraftRequest, HeadBackend, Texts, WholeDraft
from outrider.drafters.head.backends.one_row import OneRowBackend


class RowByRowFork:
    """Copies of rows, each with a KV cache of its own. The head's own states stand for the target's."""

    capturable = False

    def __init__(self, rows: Sequence[OneRowBackend]) -> None:
        self.name = rows[0].name
        self.rows = list(rows)
        self.unread: list[Tensor | None] = [None] * len(rows)  # [1] each: the newest token, where it was not read
        self.known: list[Tensor] = [one.newest_logits for one in rows]  # [1, N] each, where it was

    def admit_all(self, texts: Texts, lengths: Mapping[int, int]) -> None:
        raise NotImplementedError("a fork of a head starts no texts")

    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        for row, own in enumerate((count * texts.context.active).tolist()):
            for token in tokens[row, :own, None]:
                self._logits(texts, row)
                self.unread[row] = token
        texts.context.append(tokens, count)

    def rewind(self, texts: Texts) -> None:
        raise NotImplementedError("a fork of a head takes nothing back")

    def select(self, texts: Texts, rows: Tensor) -> HeadBackend:
        order = rows.tolist()
        self.unread, self.known = [self.unread[row] for row in order], [self.known[row] for row in order]
        self.rows = taken(self.rows, order)
        return self

    def fork(self, texts: Texts, rows: Tensor) -> HeadBackend:
        other = RowByRowFork([self.rows[row].twin() for row in rows.tolist()])
        other.unread, other.known = ([part[row] for row in rows.tolist()] for part in (self.unread, self.known))
        return other

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        wanted = texts.context.active if caps is None else texts.context.active & (caps > 0)
        self.drafting = [row for row, own in enumerate(wanted.tolist()) if own]
        return gamma if self.drafting else 0

    def logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        found = torch.zeros((len(self.rows), len(self.rows[0].output)))
        for row in self.drafting:
            if k:
                self._logits(texts, row)
                self.unread[row] = last[row : row + 1]
            found[row] = self._logits(texts, row)[0]
        return found

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.rows[0].likeliest(logits)

    def draft(self, texts: Texts, request: DraftRequest) -> WholeDraft | None:
        """Guess by guess: a tree has one behind each token."""
        return None

    def _logits(self, texts: Texts, row: int) -> Tensor:
        """[1, N], behind all that is known of a row."""
        token, self.unread[row] = self.unread[row], None
        if token is not None:
            self.known[row] = self.rows[row].guess(texts.embedding[token])
        return self.known[row]


def taken(rows: Sequence[OneRowBackend], order: Sequence[int]) -> list[OneRowBackend]:
    """The backends of these rows; one that is taken again is copied."""
    return [rows[row].twin() if row in order[:place] else rows[row] for place, row in enumerate(order)]
