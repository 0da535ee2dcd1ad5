"""Whether an engine computes all that a model's config asks for: every option of the config must be known here.

An option that is not known, and has not the value that transformers gives it by default, may change the layers: such a
model is left to transformers. It is never run with the option passed over.
"""

from __future__ import annotations

from typing import Any

from outrider.models.llama_layer import LayerDesign
from outrider.models.positions import rotation_settings
from outrider.models.settings import setting

_COMPUTED = frozenset(
    {
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "rope_parameters",
        "tie_word_embeddings", "attention_bias", "mlp_bias",
    }
)  # fmt: skip
"""Options that layers of every design read."""

_NEUTRAL = frozenset(
    {
        "architectures", "model_type", "dtype", "transformers_version", "name_or_path", "auto_map", "torch_dtype",
        "use_cache", "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward",
        "is_encoder_decoder", "initializer_range", "pretraining_tp", "id2label", "label2id", "problem_type",
        "attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout", "quantization_config",
        "use_sliding_window", "max_window_layers", "no_rope_layer_interval", "original_max_position_embeddings",
        "rope_theta", "rope_scaling", "default_theta",
    }
)  # fmt: skip
"""Options that change no logits, or only through others: transformers makes ``layer_types``, ``no_rope_layers`` and
``rope_parameters`` of those in the last two lines. Quantised weights are refused elsewhere."""

_ROTATIONS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor", "original_max_position_embeddings"}),
    "longrope": frozenset(
        {"factor", "attention_factor", "short_factor", "long_factor", "original_max_position_embeddings"}
    ),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
            "original_max_position_embeddings",
        }
    ),
}  # fmt: skip
"""Kinds of rotary positions whose angles depend on nothing but the position, and their settings.

Those of dynamic ones do up to the last position that a model has, where they are the default's; those of longrope do
since a model is loaded with one of its two lists of factors (``models/positions.py``)."""


def unknown_option(config: Any, design: LayerDesign) -> str | None:
    """None, or why layers of this design are not all that the config asks for, with what to do about it."""
    known = _COMPUTED | _NEUTRAL | design.options | {design.activation_option}
    others = {
        name: value
        for name, value in vars(config).items()
        if name not in known and not name.startswith("_") and not name.endswith("_token_id")
    }
    if callable(setting(config, "to_dict")):  # transformers' own, which passes over what its class does not have
        default = vars(type(config)())
        others = {name: value for name, value in others.items() if name in default and value != default[name]}
    for name, value in others.items():
        if value is not None and value is not False:
            return f"its layers have no option {name}, which is {value!r} in config.json; leave it out"
    return _unknown_rotation(config, design)


def _unknown_rotation(config: Any, design: LayerDesign) -> str | None:
    for settings in rotation_settings(config).values():
        kind = settings.get("rope_type", "default")
        if kind not in _ROTATIONS:
            return f"rotary positions of type {kind!r} have no layers here; leave it out"
        known = _ROTATIONS[kind] | {"rope_type", "type", "rope_theta"} | (design.options & {"partial_rotary_factor"})
        for name, value in settings.items():
            if name not in known and value is not None and not (name == "partial_rotary_factor" and value == 1):
                return f"rotary positions with {name} {value!r} have no layers here; leave it out"
    return None
