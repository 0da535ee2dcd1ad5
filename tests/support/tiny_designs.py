"""Tiny models of the families that have a ``LayerDesign``, with the options by which their layers differ."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

_SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.4,
}  # fmt: skip
_LLAMA_3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 1e4,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
_PARTLY = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_MULTIPLIERS = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.2, "logits_scaling": 4.0,
}  # fmt: skip
_GEMMA = {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 12, "tie_word_embeddings": False}
_CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_BY_TYPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
}
_GEMMA_3 = {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": _BY_TYPE}

BUILT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama 3": (tf.LlamaForCausalLM, tf.LlamaConfig, {"rope_parameters": _LLAMA_3}),
    "llama, yarn": (tf.LlamaForCausalLM, tf.LlamaConfig, {"rope_parameters": _YARN}),
    "llama, other head_dim": (tf.LlamaForCausalLM, tf.LlamaConfig, {"head_dim": 12}),
    "qwen3": (tf.Qwen3ForCausalLM, tf.Qwen3Config, {"head_dim": 16}),
    "phi3": (tf.Phi3ForCausalLM, tf.Phi3Config, {"pad_token_id": 0}),
    "phi3, partly rotary": (
        tf.Phi3ForCausalLM, tf.Phi3Config, {"pad_token_id": 0, "sliding_window": 6, "rope_parameters": _PARTLY}
    ),
    "granite": (tf.GraniteForCausalLM, tf.GraniteConfig, _MULTIPLIERS | {"mlp_bias": True}),
    "smollm3": (tf.SmolLM3ForCausalLM, tf.SmolLM3Config, {"no_rope_layers": [1, 0], "pad_token_id": 0}),
    "olmo2": (tf.Olmo2ForCausalLM, tf.Olmo2Config, {}),
    "gemma": (tf.GemmaForCausalLM, tf.GemmaConfig, {"head_dim": 8}),
    "gemma2": (tf.Gemma2ForCausalLM, tf.Gemma2Config, _GEMMA | _CAPS),
    "gemma3": (tf.Gemma3ForCausalLM, tf.Gemma3TextConfig, _GEMMA | _GEMMA_3),
}  # fmt: skip
"""The classes of model and config, and options of the config."""


def built(name: str, **sizes: Any) -> Any:
    """With norms and biases that are not all ones and zeros, which nobody would miss; all weights are bfloat16, in
    float32. ``sizes`` that differ from those here go into the config."""
    torch.manual_seed(0)
    model, config, options = BUILT[name]
    found = model(config(**_SIZES | options | sizes))
    for parameter, values in found.named_parameters():
        if "norm" in parameter or parameter.endswith("bias"):
            values.data += 0.4 * torch.randn(values.shape)
        values.data = values.data.bfloat16().float()  # not buffers: rotations are computed in float32
    return found.eval()
