"""What is asked of the loop, and what it tells of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.protocols import Source
from outrider.core.records import ForcedTokens
from outrider.decoding.step_runner import Rule
from outrider.decoding.stopping import Row, Stopping
from outrider.trace import Record


@dataclass(frozen=True)
class Request:
    """One sequence to generate."""

    prompt: tuple[int, ...]
    stopping: Stopping
    seed: int = 0
    source: Source | None = None
    rule: Rule | None = None  # how its tokens are chosen; None: by the batch's rule
    gamma: int | None = None  # guesses per run at most, 0: plain decoding; None: what the batch's policy chooses
    prediction: tuple[int, ...] = ()  # what the output is expected to be: guesses for a drafter that reads it
    forced: ForcedTokens | None = None  # of the constraint that its rule holds the output to: guesses that cost nothing
    drafter: str | None = None  # name of its drafter, where the batch has several; None: the first
    owner: str | None = None  # whose earlier outputs its guesses may come from, and who may read it later; None: nobody

    def sure(self, row: Row) -> int:
        """Guesses that its constraint leaves no choice about, behind what the row holds."""
        return 0 if self.forced is None else len(self.forced(row.tokens))

    def guesses(self, row: Row, planned: int, most: int) -> int:
        """Guesses to ask for: its own number, or what the planner chooses and more where they are sure."""
        if self.gamma is None and self.forced is None:
            return planned
        most = min(most, max(0, row.left - 1))
        if self.gamma is not None:
            return min(self.gamma, most)
        sure = min(self.sure(row), most)
        return max(planned, sure) if sure else planned

    @property
    def opening(self) -> str:
        """How the prompt begins, for errors: as text where the request can decode it and it is not mere noise."""
        tokens = list(self.prompt if self.source is None or isinstance(self.source, Tensor) else self.source)
        shown = f"tokens {tokens[:8]}".replace("]", ", ...]" if len(tokens) > 8 else "]")
        if self.stopping.decode is None:
            return shown
        try:
            text = self.stopping.decode(tokens[:32])
        except Exception:  # tokens outside the vocabulary are one reason to be here
            return shown
        return f"{text[:40]!r}{'...' if len(text) > 40 or len(tokens) > 32 else ''}"


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities by the model itself, before temperature, penalties and constraints, for tokens [K]."""

    chosen: tuple[float, ...]  # [K]
    top: tuple[tuple[tuple[int, float], ...], ...]  # [K, N]: the likeliest tokens and theirs, likeliest first

    @staticmethod
    def of(logits: Tensor, tokens: Sequence[int], most: int) -> TokenLogprobs:
        """Of tokens [K] that were chosen from logits [K, V], with the ``most`` likeliest beside each."""
        table = logits.float().log_softmax(-1)
        chosen = table.gather(-1, torch.tensor(tokens, dtype=torch.int64, device=table.device)[:, None])[:, 0]
        top = table.topk(min(most, table.shape[-1]), -1)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return TokenLogprobs(tuple(chosen.tolist()), tuple(tuple(zip(*pair, strict=True)) for pair in pairs))


@dataclass(frozen=True)
class Event:
    """What a target run added to one request."""

    index: int  # of the request
    tokens: tuple[int, ...]
    accepted: int  # how many of them were guesses
    row: Row  # everything so far
    record: Record | None = None  # guesses and their fate; None where the run added nothing
    asked: int = 0  # guesses asked for
    seconds: float = 0.0  # of the step, which served every row
    logprobs: TokenLogprobs | None = None  # where the request's rule asks for them
