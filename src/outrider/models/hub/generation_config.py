"""What a checkpoint's own generation config asks for, so that greedy output equals transformers' generate."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.settings import setting

_RULES = (
    "sequence_bias", "no_repeat_ngram_size", "bad_words_ids", "min_length", "min_new_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip

HONOURED = frozenset(
    {*_RULES, "eos_token_id", "bos_token_id", "decoder_start_token_id", "repetition_penalty", "stop_strings"}
)
"""Fields of a generation config that are taken over."""

BY_CALL = frozenset(
    {
        "max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p",
        "epsilon_cutoff", "eta_cutoff", "renormalize_logits", "num_beams", "num_return_sequences", "length_penalty",
        "early_stopping",
    }
)  # fmt: skip
"""Fields that the options of a call decide, whatever a checkpoint says: length, sampling and beam search."""

NO_TEXT = frozenset(
    {
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "output_attentions", "output_scores",
        "output_hidden_states", "output_logits", "return_dict_in_generate", "pad_token_id", "is_assistant", "use_mtp",
        "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
        "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "compile_config", "disable_compile",
        "continuous_batching_config", "low_memory", "prefill_chunk_size", "transformers_version", "_from_model_config",
        "_commit_hash",
    }
)  # fmt: skip
"""Fields that change no text here: caches, padding, what is returned, transformers' own speculation."""

NOT_HONOURED = {
    "max_time": None, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "token_healing": False,
    "guidance_scale": 1, "watermarking_config": None, "remove_invalid_values": False, "penalty_alpha": 0,
    "dola_layers": None, "diversity_penalty": 0, "num_beam_groups": 1, "constraints": None, "force_words_ids": None,
}  # fmt: skip
"""Fields that would change the text and are not taken over, with the value that asks for nothing."""


@dataclass(frozen=True)
class Defaults:
    """The parts of a generation config that change the text at temperature 0."""

    eos: frozenset[int]
    decoder_start: int | None
    repetition_penalty: float
    constraints: Callable[[int, int], list[Any]]  # (prompt length, total length) -> processors
    stop: tuple[str, ...] = ()  # where a call names no stop strings of its own
    biased: bool = False  # the first of the constraints is a sequence bias

    def rules(self, penalty: float, prompt: int, total: int) -> tuple[float, list[Any]]:
        """The repetition penalty and the processors behind it.

        A sequence bias comes before the penalty, as in transformers: there the penalty is one of the processors.
        """
        rules = self.constraints(prompt, total)
        if not self.biased or penalty == 1:
            return penalty, rules
        import transformers as tf

        return 1.0, [rules[0], tf.RepetitionPenaltyLogitsProcessor(penalty), *rules[1:]]


def defaults(model: CheckpointModel, eos: int | list[int] | None = None) -> Defaults:
    config = model.generation_config
    _warn(config)
    ends = eos if eos is not None else config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    start = config.decoder_start_token_id
    start = config.bos_token_id if start is None else start

    def constraints(prompt: int, total: int) -> list[Any]:
        if all(setting(config, name) is None for name in _RULES):
            return []
        import transformers as tf  # here: most checkpoints ask for no rule, and this takes a second

        device = str(model.device)
        rules: list[Any] = []
        if config.sequence_bias:
            rules.append(tf.SequenceBiasLogitsProcessor(config.sequence_bias))
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
        if config.exponential_decay_length_penalty is not None and ends:
            decay = tuple(config.exponential_decay_length_penalty)
            rules.append(tf.ExponentialDecayLengthPenalty(decay, torch.tensor(ends, device=device), prompt))
        if config.suppress_tokens:
            rules.append(tf.SuppressTokensLogitsProcessor(config.suppress_tokens, device=device))
        if config.begin_suppress_tokens:
            rules.append(tf.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, prompt, device=device))
        return rules

    penalty = config.repetition_penalty or 1.0
    stops = config.stop_strings or ()
    stops = (stops,) if isinstance(stops, str) else tuple(stops)
    first = start if model.encoder_decoder else None
    return Defaults(frozenset(ends), first, penalty, constraints, stops, bool(config.sequence_bias))


def _warn(config: Any) -> None:
    """One line for all that is asked for and not done."""
    asked = {name: setting(config, name) for name in NOT_HONOURED}
    told = [f"{name}={value!r}" for name, value in asked.items() if value not in (None, NOT_HONOURED[name])]
    if told:
        warnings.warn(
            f"the model's generation config asks for {', '.join(told)}, which is not honoured here: texts may differ "
            "from transformers' generate; use logits_processor or stopping_criteria for rules of your own",
            stacklevel=4,
        )
