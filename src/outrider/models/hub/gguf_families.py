"""Configs of GGUF files whose settings transformers does not read, or not all of: one function for each family.

What a file does not say is what llama.cpp takes it to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ModelError

Metadata = Mapping[str, Any]

_REMEDY = "use the model's safetensors files"

_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}
"""Layers of the models of 27 billion weights: the only ones whose queries are not scaled by the size of a head."""


class Keys:
    """The metadata of a file under its architecture's prefix."""

    def __init__(self, source: Path, metadata: Metadata) -> None:
        self.source, self._metadata = source, metadata
        self.architecture = str(metadata["general.architecture"])

    def get(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self.architecture}.{name}", default)

    def need(self, name: str) -> Any:
        """ModelError where a file does not say what every such file says."""
        found = self.get(name)
        if found is None:
            raise ModelError(f"{self.source}: the file has no {self.architecture}.{name}; get it again, or {_REMEDY}")
        return found


def _sizes(keys: Keys) -> dict[str, Any]:
    """What files of all families say."""
    heads = int(keys.need("attention.head_count"))
    found = {
        "max_position_embeddings": int(keys.need("context_length")),
        "hidden_size": int(keys.need("embedding_length")),
        "intermediate_size": int(keys.need("feed_forward_length")),
        "num_hidden_layers": int(keys.need("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(keys.get("attention.head_count_kv", heads)),
        "rms_norm_eps": float(keys.need("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(keys.get("rope.freq_base", 10000.0))},
    }
    depth = keys.get("attention.key_length")
    return found | ({} if depth is None else {"head_dim": int(depth)})


def _granite(keys: Keys) -> dict[str, Any]:
    if keys.get("rope.scaling.finetuned") is False or keys.get("deepstack_mapping"):
        raise ModelError(f"{keys.source}: a Granite without rotary positions, or with images, is not read; {_REMEDY}")
    found = _sizes(keys)
    depth = found["hidden_size"] // found["num_attention_heads"]
    return found | {
        "embedding_multiplier": float(keys.get("embedding_scale") or 1.0),
        "residual_multiplier": float(keys.get("residual_scale") or 1.0),
        "attention_multiplier": float(keys.get("attention.scale") or depth**-0.5),
        "logits_scaling": float(keys.get("logit_scale") or 1.0),
    }


def _olmo2(keys: Keys) -> dict[str, Any]:
    if keys.get("attention.sliding_window"):
        raise ModelError(f"{keys.source}: OLMo 3, whose layers have windows, is not read from GGUF files; {_REMEDY}")
    return _sizes(keys)


def _gemma(keys: Keys) -> dict[str, Any]:
    """Gemma 1, and what the later ones share."""
    keys.need("attention.key_length")
    return _sizes(keys)


def _windowed_gemma(keys: Keys, period: int, window: int | None) -> dict[str, Any]:
    """``period``: every so many layers one without a window."""
    found = _gemma(keys)
    layers, heads = found["num_hidden_layers"], found["num_attention_heads"]
    size = keys.get("attention.sliding_window", window) or 0
    largest = layers == _LARGEST_GEMMA[keys.architecture]
    pattern = keys.get("attention.sliding_window_pattern", period)
    windows = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in range(layers)]
    return found | {
        "query_pre_attn_scalar": found["hidden_size"] // heads if largest else found["head_dim"],
        "sliding_window": int(size) or None,
        "layer_types": ["sliding_attention" if size and each else "full_attention" for each in windows],
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
    }


def _gemma2(keys: Keys) -> dict[str, Any]:
    found = _windowed_gemma(keys, 2, 4096)
    return found | {
        "attn_logit_softcapping": float(keys.get("attn_logit_softcapping", 50.0)),
        "final_logit_softcapping": float(found["final_logit_softcapping"] or 30.0),
    }


def _gemma3(keys: Keys) -> dict[str, Any]:
    found = _windowed_gemma(keys, 6, None)
    local = {"rope_type": "default", "rope_theta": float(keys.get("rope.freq_base_swa", 10000.0))}
    by_type = {"full_attention": found["rope_parameters"], "sliding_attention": local}
    return found | {"rope_parameters": by_type}


CONFIGS: Mapping[str, Callable[[Keys], dict[str, Any]]] = {
    "granite": _granite,
    "smollm3": _sizes,  # every fourth layer without rotary positions, as by default
    "olmo2": _olmo2,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
"""By the architecture of a file. The config of others is read by transformers."""
