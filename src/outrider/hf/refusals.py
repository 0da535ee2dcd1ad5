"""What ``transformers_generate`` refuses, by name: an option that is silently ignored gives a wrong text.

Every field of transformers' GenerationConfig is in one of three tables; a test compares them with docs/transformers.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from outrider.errors import BadOption, require
from outrider.models.settings import setting

HONOURED = frozenset(
    {
        "max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings", "do_sample",
        "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
        "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "bad_words_ids", "renormalize_logits", "forced_bos_token_id", "forced_eos_token_id",
        "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sequence_bias",
        "watermarking_config", "num_return_sequences", "return_dict_in_generate", "pad_token_id", "bos_token_id",
        "eos_token_id", "decoder_start_token_id",
    }
)  # fmt: skip

WITHOUT_EFFECT = {
    "early_stopping": "means something to beam search only",
    "length_penalty": "means something to beam search only",
    "diversity_penalty": "means something to beam search only",
    "low_memory": "means something to contrastive search only",
    "use_cache": "Outrider keeps its own keys and values; the text is the same",
    "max_cache_len": "Outrider keeps its own keys and values; the text is the same",
    "disable_compile": "the model is not compiled",
    "remove_invalid_values": "logits that are not finite are an error",
    "transformers_version": "says which version wrote the file",
    "_from_model_config": "says where the configuration came from",
    "_commit_hash": "says where the configuration came from",
}

_BEAMS = "use outrider.load(...).generate(beams=...)"
_TABLES = "speculative decoding keeps no such tables; leave it out"
_MODE = "it asks for another way of decoding; leave it out"
_ASSISTED = "it steers transformers' assisted decoding; use gamma= for the number of guesses"
_MEMORY = "Outrider keeps its own keys and values; leave it out"

REFUSED = {
    "num_beams": _BEAMS,
    "num_beam_groups": _BEAMS,
    "constraints": _BEAMS,
    "force_words_ids": _BEAMS,
    "output_scores": _TABLES,
    "output_logits": _TABLES,
    "output_attentions": _TABLES,
    "output_hidden_states": _TABLES,
    "penalty_alpha": _MODE,
    "dola_layers": _MODE,
    "guidance_scale": _MODE,
    "use_mtp": _MODE,
    "prompt_lookup_num_tokens": 'use draft="copy"',
    "max_matching_ngram_size": 'use draft="copy"',
    "is_assistant": _ASSISTED,
    "num_assistant_tokens": _ASSISTED,
    "num_assistant_tokens_schedule": _ASSISTED,
    "assistant_confidence_threshold": _ASSISTED,
    "assistant_early_exit": _ASSISTED,
    "assistant_lookbehind": _ASSISTED,
    "target_lookbehind": _ASSISTED,
    "assistant_ensemble_weight": _ASSISTED,
    "speculation_type": _ASSISTED,
    "token_healing": "heal the prompt before generating",
    "cache_implementation": _MEMORY,
    "cache_config": _MEMORY,
    "compile_config": "the model is not compiled; leave it out",
    "continuous_batching_config": "pass the prompts as a list to outrider.load(...).generate",
    "prefill_chunk_size": _MEMORY,
}

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "guidance_scale": (1, 1.0),
    "penalty_alpha": (0.0,),
    "cache_implementation": ("dynamic", "static"),
}
"""Values of refused fields that ask for nothing, beside None, False and transformers' own default."""


_FIELDS = tuple(GenerationConfig().__dict__)
"""A checkpoint's file may hold more, which transformers does not read either."""


def check_config(config: GenerationConfig) -> None:
    """Refuse what the generation config asks for and cannot be had here."""
    defaults = GenerationConfig._get_default_generation_params()
    known = HONOURED | WITHOUT_EFFECT.keys()
    for name in _FIELDS:
        value = getattr(config, name, None)
        neutral = (None, False, defaults.get(name), *_NEUTRAL.get(name, ()))
        if name not in known and not any(value is other or value == other for other in neutral):
            remedy = REFUSED.get(name, "leave it out")
            raise BadOption(f"{name}={value!r} is not supported with custom_generate=transformers_generate: {remedy}")


_CONSUMED = frozenset(
    {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "encoder_outputs"}
)


_NAMES = {"mm_encoder_outputs": "pixel_values (or another input beside text: mm_encoder_outputs)"}
"""What transformers has already made something else of, by the name under which the caller gave it."""


def check_inputs(model: PreTrainedModel, ids: Tensor, given: dict[str, Any]) -> None:
    """Refuse every input of the model that would not be used: a vision model must not answer without its image."""
    shards = setting(model, "_tp_size") or 1
    require(
        shards == 1,
        f"the model is sharded over {shards} processes, which would each decide for itself: not supported with "
        "custom_generate=transformers_generate; use outrider.load(..., tensor_parallel=N)",
    )
    decoder_mask = given.get("decoder_attention_mask")
    require(
        decoder_mask is None or bool((decoder_mask == 1).all()),
        "decoder_attention_mask hides tokens: not supported with custom_generate=transformers_generate; "
        "pass decoder_input_ids of one length, or rows one by one",
    )
    unused = sorted(given.keys() - _CONSUMED - {"decoder_attention_mask"})
    unused = [_NAMES.get(name, name) for name in unused if given[name] is not None]
    require(
        not unused,
        f"{', '.join(unused)} would not be used: not supported with custom_generate=transformers_generate; "
        "call generate without it, or leave the input out",
    )
    cache = given.get("past_key_values")
    require(
        cache is None or not (cache.get_seq_length() or getattr(cache, "_is_user_defined", False)),
        "past_key_values would not be used: Outrider keeps its own keys and values; pass the whole prompt instead",
    )
    keep = given.get("logits_to_keep")
    require(
        keep is None or (isinstance(keep, int) and keep == 1),
        f"logits_to_keep={keep!r} is decided by the decoding loop; leave it out",
    )
    require(
        bool(model.config.is_encoder_decoder) or _usual_positions(ids, given),
        "position_ids other than 0, 1, 2... over the tokens of each row are not supported with "
        "custom_generate=transformers_generate; leave them out",
    )


def _usual_positions(ids: Tensor, given: dict[str, Any]) -> bool:
    """transformers makes position ids for every call: those of the caller can only be told by their values."""
    positions, mask = given.get("position_ids"), given.get("attention_mask")
    if positions is None:
        return True
    mask = torch.ones_like(ids) if mask is None else mask
    if positions.dim() != 2 or positions.shape[1] != mask.shape[1]:
        return False
    usual = mask.long().cumsum(-1) - 1
    return bool(((positions == usual) | (mask == 0)).all())
