"""What a checkpoint's own generation config asks for, so that greedy output equals transformers' generate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outrider.models.huggingface import HuggingFaceModel

_RULES = (
    "no_repeat_ngram_size", "bad_words_ids", "min_length", "min_new_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Defaults:
    """The parts of a generation config that change the text at temperature 0."""

    eos: frozenset[int]
    decoder_start: int | None
    repetition_penalty: float
    constraints: Callable[[int, int], list[Any]]  # (prompt length, total length) -> processors


def defaults(model: HuggingFaceModel, eos: int | list[int] | None = None) -> Defaults:
    config = model.model.generation_config
    ends = eos if eos is not None else config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    start = config.decoder_start_token_id
    start = config.bos_token_id if start is None else start

    def constraints(prompt: int, total: int) -> list[Any]:
        if all(getattr(config, name) is None for name in _RULES):
            return []
        import transformers as tf  # here: most checkpoints ask for no rule, and this takes a second

        device = str(model.device)
        rules: list[Any] = []
        if config.no_repeat_ngram_size:
            rules.append(tf.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
        if config.bad_words_ids:
            rules.append(tf.NoBadWordsLogitsProcessor(config.bad_words_ids, ends or None))
        if config.min_length and ends:
            rules.append(tf.MinLengthLogitsProcessor(config.min_length, ends, device=device))
        if config.min_new_tokens and ends:
            rules.append(tf.MinNewTokensLengthLogitsProcessor(prompt, config.min_new_tokens, ends, device=device))
        if config.forced_bos_token_id is not None:
            rules.append(tf.ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id))
        if config.forced_eos_token_id is not None:
            rules.append(tf.ForcedEOSTokenLogitsProcessor(total, config.forced_eos_token_id, device=device))
        if config.suppress_tokens:
            rules.append(tf.SuppressTokensLogitsProcessor(config.suppress_tokens, device=device))
        if config.begin_suppress_tokens:
            rules.append(tf.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, prompt, device=device))
        return rules

    penalty = config.repetition_penalty or 1.0
    return Defaults(frozenset(ends), start if model.encoder_decoder else None, penalty, constraints)
