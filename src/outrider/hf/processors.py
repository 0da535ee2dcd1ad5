"""From transformers' logits processors to Outrider's sampling options, row by row.

transformers calls a processor with the whole batch, once a token. Here rows are at different lengths, and several
positions of a row are looked at in one run. So a processor must be a function of the row it is shown: those of
transformers that are not are given their own row's part of the batch, or refused; others are tried out first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as known

from outrider.core.processors import Processor
from outrider.core.sampling import Sampling
from outrider.errors import BadOption

_PURE = frozenset(
    {
        "EpsilonLogitsWarper", "EtaLogitsWarper", "ExponentialDecayLengthPenalty", "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor", "LogitNormalization",
        "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper",
        "NoBadWordsLogitsProcessor", "NoRepeatNGramLogitsProcessor", "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "TypicalLogitsWarper",
        "WatermarkLogitsProcessor",
    }
)  # fmt: skip
"""transformers' own that are functions of the tokens and scores of one row."""

_WITHOUT_PADDING = (known.RepetitionPenaltyLogitsProcessor, known.NoRepeatNGramLogitsProcessor)
"""Shown a row without its padding: padding is not text, so it is no repetition. All others count it, as always."""


@dataclass(frozen=True)
class RowInputs:
    """What one row of the batch was given."""

    padding: Tensor  # [P]: the tokens masked in front of its prompt
    source: Tensor | None  # [S]: what the encoder processors call the encoder's input, without padding


def sampling_of(
    processors: Sequence[Any], sampled: bool, ids: Tensor, rows: Sequence[RowInputs], vocab_size: int
) -> Sampling:
    """The options that do what transformers' list of processors does to rows ``ids`` [B, T], padding included."""
    rest = list(processors)
    options: dict[str, Any] = {"temperature": 1.0 if sampled else 0.0}
    if rest and type(rest[0]) is known.RepetitionPenaltyLogitsProcessor and rest[0].prompt_ignore_length is None:
        options["repetition_penalty"] = float(rest.pop(0).penalty)
    options |= _take_min_tokens(rest, ids.shape[1], vocab_size)
    _drop_normalisation(rest)
    if sampled:
        options |= _take_filters(rest)
    if not rest:
        return Sampling(**options)
    for processor in rest:
        _check(processor, ids, vocab_size)
    return Sampling(**options, processors=(BatchProcessor([_of_row(rest, i, row) for i, row in enumerate(rows)]),))


_MIN_LENGTHS = (known.MinLengthLogitsProcessor, known.MinNewTokensLengthLogitsProcessor)


def _take_min_tokens(processors: list[Any], width: int, vocab_size: int) -> dict[str, Any]:
    """Take the first processors off as far as they forbid the same ends before a length: rows of ``width`` tokens,
    padding included, have the same number of new tokens then."""
    least, ends = 0, None
    while processors and type(processors[0]) in _MIN_LENGTHS:
        first = processors[0]
        own = {int(token): -torch.inf for token in first.eos_token_id.tolist() if 0 <= token < vocab_size}
        if ends not in (None, own):
            break
        if type(first) is known.MinLengthLogitsProcessor:
            total = first.min_length
        else:
            total = first.prompt_length_to_skip + first.min_new_tokens
        least, ends = max(least, total - width), own
        processors.pop(0)
    return {"min_tokens": least, "withheld": ends} if least and ends else {}


def _drop_normalisation(processors: list[Any]) -> None:
    """Take LogitNormalization off the end: only filters that look at differences of logits, and softmax, follow."""
    while processors and type(processors[-1]) is known.LogitNormalization:
        processors.pop()


_FILTERS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (known.MinPLogitsWarper, "min_p", lambda p: p.min_p),
    (known.TopPLogitsWarper, "top_p", lambda p: p.top_p),
    (known.TopKLogitsWarper, "top_k", lambda p: p.top_k),
    (known.TemperatureLogitsWarper, "temperature", lambda p: p.temperature),
)


def _take_filters(processors: list[Any]) -> dict[str, Any]:
    """Take the last processors off as far as they are those Outrider has, in the order in which it applies them."""
    options = {}
    for kind, name, value in _FILTERS:
        if processors and type(processors[-1]) is kind and _as_usual(processors[-1]):
            options[name] = value(processors.pop())
            _drop_normalisation(processors)
    return options


def _as_usual(processor: Any) -> bool:
    keep = getattr(processor, "min_tokens_to_keep", 1)
    # Outrider's top_p is above 0; transformers' may be 0, for one token.
    return (
        keep == 1
        and getattr(processor, "filter_value", -torch.inf) == -torch.inf
        and getattr(processor, "top_p", 1) > 0
    )


class BatchProcessor:
    """Processors of a batch, each row with its own: outrider.core.sampling asks for those of a row."""

    def __init__(self, rows: Sequence[Processor]) -> None:
        self.rows = list(rows)

    def of_row(self, row: int) -> Processor:
        return self.rows[row]


def _of_row(processors: Sequence[Any], index: int, row: RowInputs) -> Processor:
    steps = [(_own(p, index, row), not isinstance(p, _WITHOUT_PADDING)) for p in processors]
    padding = row.padding[None]

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        padded = torch.cat([padding.to(ids.device), ids], 1) if padding.shape[1] else ids
        for step, counts_padding in steps:
            scores = step(padded if counts_padding else ids, scores)
        return scores

    return process


def _own(processor: Any, index: int, row: RowInputs) -> Processor:
    """A row's own part of a processor that is made for a batch."""
    if type(processor) is known.PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        return known.PrefixConstrainedLogitsProcessor(lambda _, tokens: allowed(index, tokens), 1)  # type: ignore[no-any-return]
    if type(processor) is known.EncoderRepetitionPenaltyLogitsProcessor and row.source is not None:
        own = copy.copy(processor)
        own.encoder_input_ids = row.source[None]
        return own  # type: ignore[no-any-return]
    if type(processor) is known.EncoderNoRepeatNGramLogitsProcessor and row.source is not None:
        return known.EncoderNoRepeatNGramLogitsProcessor(processor.ngram_size, row.source[None])  # type: ignore[no-any-return]
    if isinstance(processor, known.RepetitionPenaltyLogitsProcessor) and processor.prompt_ignore_length:
        own = copy.copy(processor)
        own.prompt_ignore_length = max(0, processor.prompt_ignore_length - len(row.padding))  # it counts padding
        return own  # type: ignore[no-any-return]
    return processor  # type: ignore[no-any-return]


_BY_ROW = (
    known.PrefixConstrainedLogitsProcessor,
    known.EncoderRepetitionPenaltyLogitsProcessor,
    known.EncoderNoRepeatNGramLogitsProcessor,
)


def _check(processor: Any, ids: Tensor, vocab_size: int) -> None:
    """Refuse what keeps a state, or looks at its neighbours: here rows come alone, and positions in any order."""
    kind, name = type(processor), type(processor).__name__
    if kind in _BY_ROW or (kind.__module__ == known.__name__ and name in _PURE):
        return
    if kind.__module__ == known.__name__:
        raise BadOption(
            f"{name} keeps a state from token to token, or needs its whole batch: "
            "not supported with custom_generate=transformers_generate; leave it out"
        )
    try:
        alike = _is_function_of_its_row(processor, ids, vocab_size)
    except Exception as error:
        raise BadOption(
            f"logits_processor {name} failed when it was shown single rows, as Outrider does "
            f"({type(error).__name__}: {error}); make it a function of one row's tokens and scores"
        ) from error
    if not alike:
        raise BadOption(
            f"logits_processor {name} answers differently for a row alone, in the batch, or asked again: it keeps a "
            "state or depends on other rows, which speculative decoding cannot honour; make it a function of one "
            "row's tokens and scores"
        )


def trial_copy(function: Any) -> Any:
    """A caller's processor or criterion to try out: the lists and tensors it keeps stay as they are.

    Models inside it are shared. What cannot be copied in depth is copied as far as its attributes.
    """
    inside = vars(function).values() if hasattr(function, "__dict__") else ()
    shared = {id(value): value for value in inside if isinstance(value, torch.nn.Module)}
    try:
        return copy.deepcopy(function, shared)
    except Exception:
        return copy.copy(function)


def _is_function_of_its_row(processor: Any, ids: Tensor, vocab_size: int) -> bool:
    scores = torch.linspace(-4, 4, vocab_size, device=ids.device).expand(len(ids), -1)
    trial = trial_copy(processor)  # a first call may be remembered

    def shown(rows: slice) -> Tensor:
        return torch.as_tensor(trial(ids[rows].clone(), scores[rows].clone()))

    whole = shown(slice(None))
    alone = [shown(slice(row, row + 1)) for row in range(len(ids))]
    return torch.equal(whole, torch.cat(alone)) and torch.equal(whole, shown(slice(None)))
