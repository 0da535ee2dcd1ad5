"""Rows on a transformers model where bits are not at stake: as few tokens as possible go through it.

Runs have no constant width, prompts of a batch are run together by its first step, and on a CPU attention reads what
is filled rather than the whole capacity. Constant shapes, in which plain and speculative text are equal to the bit,
are ``HuggingFaceSession``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outrider.core.protocols import Shape, Source
from outrider.models.transformers import families
from outrider.models.transformers.model import HuggingFaceModel, HuggingFaceSession

if TYPE_CHECKING:
    from outrider.models.transformers.kv_cache import RaggedCache


class NarrowSession(HuggingFaceSession):
    """Every run ends with the last token of each row: rows that need fewer tokens run some of theirs again."""

    def __init__(self, model: HuggingFaceModel, rows: int, shape: Shape) -> None:
        super().__init__(model, rows, shape)
        self._used: set[int] = set()  # slots that have held a row before
        self._filled: int | None = None  # positions that the run at hand may look at; None: all there are
        self._unmasked = False  # every token of the run at hand looks at all positions up to its own
        self._wanted = 1  # last tokens of each row whose logits the run at hand is for

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        # Where tokens in front of a short prompt are run: masked as well, but a NaN would not be.
        for buffer in (b for pair in self.cache.buffers() for b in pair):
            buffer[row, :, self.shape.capacity - 1].zero_()
        begun = bool((self.cached * self.context.active).max() > 0)
        if row in self._used or begun or self.states is not None or self.model.encoder_decoder:
            self._used.add(row)
            super().admit(row, prompt, source)
            return
        if source is not None:
            self._encode(row, source)  # refuses it
        self._used.add(row)
        self.context.admit(row, prompt)
        self.cached[row] = 0
        self.behind = max(self.behind, len(prompt))

    def score(self, tail: Tensor) -> Tensor:
        guesses = tail.shape[1]
        if self.model.encoder_decoder:  # decoders of these count positions from where a run starts in the cache
            self._wanted = self.behind + guesses
            return super().score(tail)
        self.context.write_scratch(tail)
        self._wanted = guesses + 1
        logits = self._run(self.context.lengths - self.behind, self.behind + guesses)
        self.guessed = guesses
        return logits[:, -(guesses + 1) :]

    def extend(self, tokens: Tensor) -> Tensor:
        self._wanted = tokens.shape[1]
        return super().extend(tokens)

    def _run(self, start: Tensor, width: int) -> Tensor:
        positions = start[:, None] + torch.arange(width, device=start.device)  # [B, w]
        tokens = self.context.tokens.gather(1, positions.clamp(min=0))
        # In front of a short prompt there is nothing: that runs in the last place, where no row gets to.
        positions = torch.where(positions < 0, self.shape.capacity - 1, positions)
        self._look(start, width)
        self._scored = True
        logits, hidden = self._feed(tokens, positions)
        self._window = None if hidden is None else (start + width - hidden.shape[1], hidden)
        return logits

    def _look(self, start: Tensor, width: int) -> None:
        """How far back the run looks, where the host may ask for it; and whether the model can do without a mask."""
        self._filled, self._unmasked = None, False
        if start.device.type != "cpu":
            return
        last = int(start.max())
        self._filled = last + width
        alike = last == int(start.min()) and (width == 1 or last == 0)
        known = self.model.windows is None and self.model.config.model_type in families.MAKE_THEIR_OWN_MASK
        self._unmasked = alike and known and self.model.config._attn_implementation == "sdpa"

    def _prefill(self, row: int, tokens: Tensor, positions: Tensor, last: int) -> Tensor | None:
        self._filled, self._unmasked, self._wanted = None, False, tokens.shape[1]
        return super()._prefill(row, tokens, positions, last)

    def _arguments(self, cache: RaggedCache, tokens: Tensor, positions: Tensor) -> dict[str, Any]:
        arguments = super()._arguments(cache, tokens, positions)
        cache.place.filled = self._filled
        if self._unmasked:  # decoders only
            arguments["attention_mask"] = None
        if "logits_to_keep" in self.model.accepts:
            arguments["logits_to_keep"] = self._wanted
        return arguments

    def _additive(self, positions: Tensor, window: int | None) -> Tensor:
        whole = self._slots
        self._slots = whole[: self._filled]
        try:
            return super()._additive(positions, window)
        finally:
            self._slots = whole
