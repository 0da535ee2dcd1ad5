"""Which settings of a GGUF file are read: a file that has another one is refused, since its model would be another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ModelError

_READ = frozenset(
    {
        "context_length", "embedding_length", "feed_forward_length", "block_count", "attention.head_count",
        "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length",
        "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier",
    }
)  # fmt: skip
_WITHOUT_EFFECT = frozenset(
    {"vocab_size", "tensor_data_layout", "pooling_type", "rope.scaling.finetuned", "attention.layer_norm_epsilon"}
)
_WINDOWS = frozenset({"attention.sliding_window", "attention.sliding_window_pattern", "final_logit_softcapping"})
_OF_SOME: Mapping[str, frozenset[str]] = {
    "phi3": frozenset({"attention.sliding_window"}),
    "granite": frozenset({"embedding_scale", "residual_scale", "attention.scale", "logit_scale", "deepstack_mapping"}),
    "olmo2": frozenset({"attention.sliding_window"}),
    "gemma2": _WINDOWS | {"attn_logit_softcapping"},
    "gemma3": _WINDOWS | {"rope.freq_base_swa"},
}
_NONE: tuple[Any, ...] = (0, None, "", [])
_ONE = (0, 1)
_USUAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,), "rope.scaling.yarn_beta_fast": (32,), "rope.scaling.yarn_beta_slow": (1,),
    "rope.scaling.yarn_ext_factor": (1,), "rope.scaling.yarn_attn_factor": (1,), "embedding_scale": _ONE,
    "residual_scale": _ONE, "logit_scale": _ONE,
}  # fmt: skip
"""What changes nothing, of settings that are not read; of others ``_NONE`` does not."""


def require_known_keys(source: Path, metadata: Mapping[str, Any]) -> None:
    """ModelError where a file asks for what its layers here do not do."""
    architecture = str(metadata["general.architecture"])
    known = _READ | _OF_SOME.get(architecture, frozenset())
    said = {
        key.removeprefix(f"{architecture}."): value
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.")
    }
    for name, value in said.items():
        if name in known:
            fine = not isinstance(value, list) or name in ("attention.sliding_window_pattern", "deepstack_mapping")
        else:
            fine = name in _WITHOUT_EFFECT or value in _USUAL.get(name, _NONE) or _never_seen(name, value, said)
        if not fine:
            raise _unread(source, f"{architecture}.{name}", value)
    depth, values = said.get("attention.key_length"), said.get("attention.value_length")
    if depth != values and None not in (depth, values):
        raise _unread(source, f"{architecture}.attention.value_length", values)


def _never_seen(name: str, value: Any, said: Mapping[str, Any]) -> bool:
    """Whether it is a window of all positions that there are."""
    return name == "attention.sliding_window" and isinstance(value, int) and value >= said.get("context_length", 0)


def _unread(source: Path, key: str, value: Any) -> ModelError:
    shown = f"{value!r:.60}"
    return ModelError(f"{source}: {key} = {shown} is not read from GGUF files here; use the model's safetensors files")
