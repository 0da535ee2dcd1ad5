"""Rows on a transformers model where bits are not at stake: as few tokens as possible go through it.

Runs have no constant width, prompts of a batch are run together by its first step, and on a CPU attention reads what
is filled rather than the whole capacity. Constant shapes, in which plain and speculative text are equal to the bit,
are ``CachedSession``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.core.protocols import Admission, Shape
from outrider.models.cached_session import CachedSession, Runnable
from outrider.models.engine_protocol import Wanted


class NarrowSession(CachedSession):
    """Every run ends with the last token of each row: rows that need fewer tokens run some of theirs again."""

    def __init__(self, model: Runnable, rows: int, shape: Shape) -> None:
        super().__init__(model, rows, shape)
        self._used: set[int] = set()  # slots that have held a row before
        self._needed = 1  # last tokens of each row whose logits the run at hand is for

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        if self.model.facts.encoder_decoder:
            super().admit_all(admissions)
            return
        for new in admissions:
            self._admit(new)

    def _admit(self, new: Admission) -> None:
        row, prompt, source = new.row, new.prompt, new.source
        # Where tokens in front of a short prompt are run: masked as well, but a NaN would not be.
        for buffer in (b for pair in self.cache.buffers() for b in pair):
            buffer[row, :, self.shape.capacity - 1].zero_()
        begun = bool((self.cached * self.context.active).max() > 0)
        if row in self._used or begun or self.states is not None:
            self._used.add(row)
            super().admit_all([new])
            return
        if source is not None:
            self._encode({row: source})  # refuses it
        self._used.add(row)
        self._written = max(self._written, len(prompt))
        self.context.admit(row, prompt)
        self.cached[row] = 0
        self.behind = max(self.behind, len(prompt))

    def score(self, tail: Tensor) -> Tensor:
        guesses = tail.shape[1]
        if self.model.facts.encoder_decoder:  # decoders of these count positions from where a run starts in the cache
            self._needed = self.behind + guesses
            return super().score(tail)
        self.context.write_scratch(tail)
        self._needed = guesses + 1
        logits = self._run(self.context.lengths - self.behind, self.behind + guesses)
        self.guessed = guesses
        return logits[:, -(guesses + 1) :]

    def extend(self, tokens: Tensor) -> Tensor:
        self._needed = tokens.shape[1]
        return super().extend(tokens)

    def _run(self, start: Tensor, width: int) -> Tensor:
        positions = start[:, None] + torch.arange(width, device=start.device)  # [B, w]
        tokens = self.context.tokens.gather(1, positions.clamp(min=0))
        # In front of a short prompt there is nothing: that runs in the last place, where no row gets to.
        positions = torch.where(positions < 0, self.shape.capacity - 1, positions)
        self._scored = True
        logits, hidden = self._feed(tokens, positions)
        self._window = None if hidden is None else (start + width - hidden.shape[1], hidden)
        return logits

    def _wanted(self, width: int) -> Wanted:
        return Wanted(range(width - self._needed, width), states=self._kept, filled_only=True)
