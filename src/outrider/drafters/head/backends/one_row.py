"""What the CPU backends for one row share: text is read when a draft needs it, once, and only as far as it is new.

A row by itself keeps in step with no other, so lengths are known on the host and shapes may follow them.
Subclasses run the layers: see ``numpy_backend.py`` and ``numba_backend.py``; ``row_by_row.py`` has several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.drafters.head.backend import DraftRequest, HeadBackend, OutputRows, Texts, WholeDraft
from outrider.drafters.head.config import HeadConfig
from outrider.drafters.head.layers import rotary_speeds

Array = NDArray[np.float32]


class OneRowBackend:
    """The KV cache of one row, by position. A rollback changes nothing in it: later tokens overwrite it."""

    name: str
    capturable = False  # lengths are read on the host
    row = 0  # of the texts: the one it drafts for

    def __init__(
        self, config: HeadConfig, output: OutputRows, capacity: int, several: Callable[[], HeadBackend]
    ) -> None:
        self.config, self.output, self._several = config, output, several
        kept = (config.heads[1], capacity if config.attends else 0, config.head_size)
        self.keys, self.values = torch.zeros((2, *kept)).numpy()  # [Hk, C, D] each
        angle = torch.arange(kept[1])[:, None] * rotary_speeds(config)
        self.cos, self.sin = angle.cos().numpy(), angle.sin().numpy()  # [C, D/2]
        self.made = 0  # the text before this position has been read
        self.position = self.oldest = 0  # the newest one read or guessed; the oldest one that attention sees
        self.newest_logits = torch.empty((1, 0))  # [1, N]: of the last guess

    def read(self, states: Tensor, tokens: Tensor, start: int) -> None:
        """Read the text from position start on: the target's states there [T, L, size], and the embeddings of the
        tokens that followed [T, size]. The next guess comes after the last of them."""
        raise NotImplementedError

    def guess(self, token: Tensor | None) -> Tensor:
        """Logits of the next token [1, N]; after the first guess, behind one whose embedding is token [1, size]."""
        raise NotImplementedError

    def stands_behind(self, texts: Texts) -> bool:
        """Whether the last guess was the first behind this text: ``newest_logits`` are then its."""
        length = int(texts.context.lengths[self.row])
        return self.position == length - 2 and self.made == length - 1 and self.newest_logits.shape[1] > 0

    def twin(self) -> Self:
        """Another with a KV cache of its own, and what this one has read in it."""
        other = copy(self)
        other.keys, other.values = self.keys.copy(), self.values.copy()
        return other

    def admit_all(self, texts: Texts, lengths: Mapping[int, int]) -> None:
        self.keys[:], self.values[:] = 0, 0
        self.made = 0

    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        texts.context.append(tokens, count)

    def rewind(self, texts: Texts) -> None:
        self.made = min(self.made, max(0, int(texts.context.lengths[self.row]) - 1))

    def select(self, texts: Texts, rows: Tensor) -> HeadBackend:
        return self._as_several(texts).select(texts, rows)

    def fork(self, texts: Texts, rows: Tensor) -> HeadBackend:
        return self._as_several(texts).fork(texts, rows)

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        length = int(texts.context.lengths[self.row])
        if length < 2:  # the target has run nothing yet
            return 0
        start = min(self.made, length - 2)
        tokens = texts.context.tokens[self.row, start + 1 : length]
        self.read(texts.states[self.row, start : length - 1], texts.embedding[tokens], start)
        return gamma

    def logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        return self.guess(texts.embedding[last] if k else None)

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.output.likeliest(logits)

    def draft(self, texts: Texts, request: DraftRequest) -> WholeDraft | None:
        return None

    def _as_several(self, texts: Texts) -> HeadBackend:
        """A backend for several rows that has read this text, in its own arithmetic."""
        other = self._several()
        other.admit_all(texts, {0: int(texts.context.lengths)})
        return other

    def _stands_at(self, position: int) -> None:
        """The text was read up to here; all guesses behind it attend as far back as the first."""
        self.position, self.oldest = position, max(0, position + 1 - self.config.window)
