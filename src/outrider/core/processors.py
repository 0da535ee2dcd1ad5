"""Logits processors: transformers' own interface, called for one row and one position at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from outrider.core.context import Context
from outrider.errors import OutriderError, ProcessorError

Processor = Callable[[Any, Any], Any]
"""A transformers LogitsProcessor: (token ids [1, T], logits [1, V]) -> logits [1, V]."""


@runtime_checkable
class ByRow(Protocol):
    """Processors of a batch whose rows have different ones."""

    def of_row(self, row: int) -> Processor: ...


@dataclass(frozen=True)
class OfRows:
    """A processor that leaves the scores of other rows as they are."""

    processor: Processor | ByRow
    rows: Sequence[bool]

    def of_row(self, row: int) -> Processor:
        return of_row(self.processor, row) if self.rows[row] else _unchanged


def of_row(processor: Processor | ByRow, row: int) -> Processor:
    return processor.of_row(row) if isinstance(processor, ByRow) else processor


def _unchanged(ids: Tensor, scores: Tensor) -> Tensor:
    return scores


def process(
    logits: Tensor, processors: Sequence[Processor | ByRow], ends: Set[int], context: Context, tail: Tensor
) -> Tensor:
    """Logits [B, K, V] as processors change them, behind the context and each guess of ``tail`` [B, K-1]: row by row
    and position by position, since a processor may do anything with the prefix it is shown.

    Nothing is asked about rows that have ended, nor behind an end token among the guesses: nothing there counts. Nor
    behind a guess that was just forbidden: it will not be kept, and a constraint need not have an answer for a text
    it does not allow.
    """
    result = logits.clone()
    rows = zip(context.prompt_lengths.tolist(), context.lengths.tolist(), context.active.tolist(), strict=True)
    for row, (prompt, length, active) in enumerate(rows):
        if not active:
            continue
        own = [of_row(processor, row) for processor in processors]
        ids = torch.cat([context.tokens[row, :length], tail[row]])
        written = ids[prompt:].tolist() if ends else []  # the prompt's own end tokens end nothing
        end = min((prompt + written.index(t) for t in ends if t in written), default=len(ids))
        for k in range(min(logits.shape[1], end - length + 1)):
            if k and result[row, k - 1, ids[length + k - 1]] == -torch.inf:
                break
            scores = logits[row : row + 1, k]
            for processor in own:
                scores = processed(processor, ids[None, : length + k], scores)
            result[row, k] = scores[0]
    return result


def named(processor: Processor) -> str:
    """For errors: as the option, and by its own name where it has one."""
    return f"logits_processor {getattr(processor, '__name__', type(processor).__name__)}"


def processed(processor: Processor, ids: Tensor, scores: Tensor) -> Tensor:
    """What a processor makes of scores [1, V]: anything but scores of that form is refused, by the processor's name."""
    name = named(processor)
    form = f"input_ids [1, {ids.shape[1]}] and scores [1, {scores.shape[1]}]"
    try:
        given = processor(ids, scores)
    except OutriderError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ProcessorError(f"{name} failed on {form}: {reason}; it must take and return one row") from error
    if not isinstance(given, Tensor) or given.shape != scores.shape or not given.is_floating_point():
        what = f"{given.dtype} {list(given.shape)}" if isinstance(given, Tensor) else repr(given)
        raise ProcessorError(f"{name} returned {what} for {form}; it must return floating-point scores of that shape")
    return given
