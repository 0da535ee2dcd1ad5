"""The records that models, drafters and verifiers exchange, with their shapes.

B rows (sequences) in a batch, G = gamma guesses, V vocabulary, W = the fixed width of a target run.
p is always the target's distribution, q the draft's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from outrider.core.draft import Choices, Draft
from outrider.core.noise import Noise
from outrider.core.sampling import Sampling

Source = Sequence[int] | Tensor
"""What an encoder reads: token ids, or its finished output [S, size]."""


ForcedTokens = Callable[[Sequence[int]], Sequence[int]]
"""Tokens that a constraint leaves no choice about, behind an output so far."""


@dataclass(frozen=True)
class Admission:
    """A sequence that starts in a slot."""

    row: int  # the slot
    prompt: Sequence[int]
    source: Source | None = None
    prediction: Sequence[int] = ()  # what the output is expected to be, where the caller has said so
    forced: ForcedTokens | None = None  # of the constraint that the output is under
    drafter: str | None = None  # name of the drafter, where there are several; None: the first
    written: int = 0  # tokens at the end of the prompt that are output: a drafter that rested is told of them late
    owner: str | None = None  # whose earlier outputs its guesses may come from; None: nobody's


@dataclass(frozen=True)
class Shape:
    """The constant shapes of a session. Same shapes, same kernels, same bits."""

    capacity: int  # tokens a row can hold
    width: int  # W: tokens per row in every run after prefill
    source_capacity: int = 0  # encoder positions a row can hold
    chunk: int = 64  # tokens per prefill run
    fixed: bool = True  # False: runs are as narrow as they can be, and bits may differ


@dataclass(frozen=True)
class Verdict:
    """What verification decided: n guesses kept, then one token of the target's own."""

    accepted: Tensor  # [B] int64: n
    token: Tensor  # [B] int64: t


def _as_asked(sampling: Sampling) -> Sampling:
    return sampling


def _p_itself(p: Any) -> Any:
    return p


@dataclass(frozen=True)
class Verifier:
    """A rule that turns p and a draft into a verdict: a pure function and what it promises."""

    name: str
    rule: Callable[[Any, Draft, Noise, Tensor], Verdict]  # of p as a table, or as choices where it compares tokens
    exact: bool  # the output follows the target's distribution
    shares_noise: bool  # the draft is drawn with the very noise the target would use
    compares: bool = False  # guesses with the tokens the target chooses: at temperature 0 it needs no more of p
    looks_ahead: bool = False  # guesses behind the last one kept have a say in the verdict
    sees: Callable[[Sampling], Sampling] = _as_asked  # the options its p is standardised with
    ceiling: Callable[[Any], Any] = _p_itself  # the most each token may be given: p itself if exact
    capturable: bool = True  # a step with it can be captured as a CUDA graph

    def __call__(self, p: Tensor | Choices, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        return self.rule(p, draft, noise, at)

    def noise_for_draft(self, noise: Noise, at: Tensor) -> Noise:
        """Shared or independent: independence is what makes acceptance by p/q unbiased.

        A rule that looks ahead has let numbers at positions to come decide something. Used again by the next run
        they would no longer be random, so it draws from streams of this run alone.
        """
        own = noise.of_run(at) if self.looks_ahead else noise
        return noise if self.shares_noise else own.child("draft")
