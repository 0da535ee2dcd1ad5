"""A feature head for a few rows on a CPU, row by row: each has a backend for one row, and they draft in turn.

A batch in torch reads the weights once for all rows, but in four bytes instead of one, and spends more on its small
operations than on its products. For a few rows, compiled drafts one after the other are done sooner. A row's guesses
are those it would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from outrider.drafters.head.backend import DraftRequest, HeadBackend, Texts, WholeDraft
from outrider.drafters.head.backends.one_row import OneRowBackend
from outrider.drafters.head.backends.row_fork import RowByRowFork, taken


class RowByRowBackend:
    """One backend for each row. Rows that change places take theirs along; those without a draft cost nothing."""

    capturable = False

    def __init__(self, rows: Sequence[OneRowBackend], several: Callable[[], HeadBackend]) -> None:
        self.name, self._several = rows[0].name, several
        self._place(rows)

    def _place(self, rows: Sequence[OneRowBackend]) -> None:
        self.rows = list(rows)
        self.drafting: list[OneRowBackend] = []  # those of the current draft
        for row, one in enumerate(rows):
            one.row = row

    def admit_all(self, texts: Texts, lengths: Mapping[int, int]) -> None:
        for row, length in lengths.items():
            self.rows[row].admit_all(texts, {row: length})

    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        texts.context.append(tokens, count)

    def rewind(self, texts: Texts) -> None:
        for one in self.rows:
            one.rewind(texts)

    def select(self, texts: Texts, rows: Tensor) -> HeadBackend:
        order = rows.tolist()
        self._place(taken(self.rows, order))
        return self

    def fork(self, texts: Texts, rows: Tensor) -> HeadBackend:
        order = rows.tolist()
        for row in set(order):
            if not self.rows[row].stands_behind(texts):  # nothing was guessed behind this text yet
                if not self.rows[row].begin(texts, 1):  # the target has run nothing yet
                    return self._as_several(texts).fork(texts, rows)
                self.rows[row].logits(texts, 0, rows[:1])
        return RowByRowFork([self.rows[row].twin() for row in order])

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        wanted = texts.context.active if caps is None else texts.context.active & (caps > 0)
        self.drafting = [one for one, own in zip(self.rows, wanted.tolist(), strict=True) if own]
        self.drafting = [one for one in self.drafting if one.begin(texts, gamma)]
        return gamma if self.drafting else 0

    def logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        # A row that is not drafted for has any logits: its guesses are drawn from them, and are not used.
        found = torch.zeros((len(self.rows), len(self.rows[0].output)))
        for one in self.drafting:
            found[one.row] = one.logits(texts, k, last[one.row : one.row + 1])[0]
        return found

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.rows[0].likeliest(logits)

    def draft(self, texts: Texts, request: DraftRequest) -> WholeDraft | None:
        """Each row's own; the next has to wait for it, but no row for one that stops early. Rows whose options have no
        such draft are left."""
        drafts = [(one, one.draft(texts, request)) for one in self.drafting]
        found = [(one.row, draft) for one, draft in drafts if draft is not None]
        if not found:
            return None
        self.drafting = [one for one, draft in drafts if draft is None]
        left = torch.zeros(len(self.rows), dtype=torch.bool)
        left[[one.row for one in self.drafting]] = True
        width = max(draft.tokens.shape[1] for _, draft in found)
        tokens = torch.zeros((len(self.rows), width), dtype=torch.int64)
        proposed = torch.zeros(tokens.shape, dtype=torch.bool)
        drawn = any(draft.q is not None for _, draft in found)  # rows may have a temperature each
        q = torch.zeros((*tokens.shape, len(self.rows[0].output))) if drawn else None
        for row, draft in found:
            guesses, own, count = draft.tokens, draft.q, draft.tokens.shape[1]
            tokens[row, :count], proposed[row, :count] = guesses[0], True
            if q is not None and own is not None:
                q[row, :count] = own[0]
            elif q is not None:  # of a row at temperature 0
                place = torch.searchsorted(self.rows[0].output.tokens, guesses[0])
                q[row, :count] = torch.nn.functional.one_hot(place, q.shape[-1]).to(q.dtype)
        return WholeDraft(tokens, q, proposed, left if self.drafting else None)

    def _as_several(self, texts: Texts) -> HeadBackend:
        """A backend for any number of rows that has read these texts, in its own arithmetic."""
        other = self._several()
        other.admit_all(texts, dict(enumerate(texts.context.lengths.tolist())))
        return other
