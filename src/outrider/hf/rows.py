"""The rows of a transformers batch as requests, and their texts as a batch again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, GenerationConfig, MaxLengthCriteria
from transformers.generation import stopping_criteria as known

from outrider.core.noise import row_seeds
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping, criterion_name
from outrider.errors import CriterionError, require
from outrider.hf.processors import RowInputs, trial_copy


@dataclass(frozen=True)
class Batch:
    """What transformers prepared for its own loop."""

    ids: Tensor  # [B, T]: prompts, or what the decoder starts with
    mask: Tensor | None  # [B, T or S]: 0 where a prompt, or the encoder's input, is padding; None: nowhere
    states: Tensor | None = None  # [B, S, size]: what the encoder gave; None: there is none
    inputs: Tensor | None = None  # [B / n, S]: what ``generate`` was given, before n = num_return_sequences

    def prompt(self, row: int) -> tuple[int, ...]:
        """The row's tokens without padding."""
        tokens = self.ids[row]
        return tuple((tokens if self._padding(row) is None else tokens[self._padding(row) == 0]).tolist())

    def source(self, row: int) -> Tensor | None:
        """What the encoder gave for the row's own tokens."""
        if self.states is None:
            return None
        return self.states[row] if self.mask is None else self.states[row][self.mask[row].bool()]

    def given(self, row: int) -> RowInputs:
        padding = self._padding(row)
        hidden = self.ids[row, :0] if padding is None else self.ids[row][padding]
        return RowInputs(hidden, self._encoder_ids(row))

    def _padding(self, row: int) -> Tensor | None:
        """[T]: where the row's prompt is padding. What an encoder reads is masked elsewhere."""
        if self.states is not None or self.mask is None:
            return None
        return self.mask[row, : self.ids.shape[1]] == 0

    def _encoder_ids(self, row: int) -> Tensor | None:
        if self.inputs is None or self.inputs.dim() != 2 or self.inputs.is_floating_point():
            return None
        tokens = self.inputs[row * len(self.inputs) // len(self.ids)]
        known_mask = self.mask is not None and self.mask.shape[1] == len(tokens)
        return tokens[self.mask[row].bool()] if known_mask and self.mask is not None else tokens


def asked_length(ids: Tensor, criteria: Sequence[Any]) -> int:
    """Tokens of the longest prompt, padding included, and its text together: at most, and one of text at least."""
    width = ids.shape[1]
    limits = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
    return max(width + 1, min(limits, default=0))


def requests(batch: Batch, criteria: Sequence[Any], seed: int) -> list[Request]:
    """One request per row, with seeds of their own."""
    size, width = batch.ids.shape
    # transformers counts padding into the length, so every row may add the same number of tokens.
    most = asked_length(batch.ids, criteria) - width
    ends = frozenset(int(t) for c in criteria if type(c) is EosTokenCriteria for t in c.eos_token_id)
    others = [c for c in criteria if type(c) not in (MaxLengthCriteria, EosTokenCriteria)]
    for criterion in others:
        _check(criterion, batch.ids)
    told = []
    made = []
    for row in range(size):
        prompt, source = batch.prompt(row), batch.source(row)
        own = tuple(_shown_padding(c, batch.given(row).padding) for c in others)
        made.append((prompt, Stopping(most, ends, criteria=own), source))
        told.append(_told_apart(prompt, source))
    seeds = row_seeds(seed, told)
    return [Request(prompt, rules, own, source) for (prompt, rules, source), own in zip(made, seeds, strict=True)]


def _told_apart(prompt: Sequence[int], source: Tensor | None) -> list[int]:
    """What a row is told apart by: its tokens and, of an encoder's output, where each position is largest. Unlike the
    output itself that does not change with the last bits, which may depend on the other sources of a batch."""
    return list(prompt) if source is None else [*source.argmax(-1).tolist(), -1, *prompt]


def _shown_padding(criterion: Any, padding: Tensor) -> Callable[..., Any]:
    """The criterion as transformers calls it: with the row as it stands in the batch, on the batch's device."""

    def judge(ids: Tensor, scores: Any) -> Any:
        return criterion(torch.cat([padding[None], ids.to(padding.device)], 1), scores)

    judge.__name__ = criterion_name(criterion)  # errors name the caller's own
    return judge


def _check(criterion: Any, ids: Tensor) -> None:
    """In a batch rows are judged one by one: refuse a criterion of the caller's that then answers differently."""
    if len(ids) == 1 or type(criterion).__module__ == known.__name__:
        return
    trial, name = trial_copy(criterion), f"stopping_criteria {criterion_name(criterion)}"

    def shown(rows: slice) -> Tensor:
        return torch.as_tensor(trial(ids[rows].clone(), None)).expand(len(ids[rows]))

    try:
        whole, again = shown(slice(None)), shown(slice(None))
        alone = torch.cat([shown(slice(row, row + 1)) for row in range(len(ids))])
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CriterionError(f"{name} failed on the prompts: {reason}") from error
    require(
        torch.equal(whole, alone) and torch.equal(whole, again),
        f"{name} answers differently for a row alone, in the batch, or asked "
        "again: it keeps a state or depends on other rows; make it a function of one row's tokens, or pass prompts "
        "one by one",
    )


def joined(ids: Tensor, new: list[list[int]], config: GenerationConfig) -> Tensor:
    """Prompts and texts as transformers returns them: shorter texts are followed by padding."""
    pad = config.pad_token_id
    ends = config.eos_token_id
    pad = pad if pad is not None else (ends if isinstance(ends, int) else ends[0] if ends else 0)
    longest = max(len(tokens) for tokens in new)
    rows = [tokens + [pad] * (longest - len(tokens)) for tokens in new]
    return torch.cat([ids, torch.tensor(rows, dtype=ids.dtype, device=ids.device)], 1)
