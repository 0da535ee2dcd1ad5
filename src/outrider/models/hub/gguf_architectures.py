"""The architectures whose GGUF files are read here, and what their tensors are called there.

Names follow from the layers of the model's family (``FAMILIES``): a GGUF file calls norms by where they stand, and has
one tensor where a checkpoint has one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

FACTORS = "rope_freqs.weight"
"""The tensor that has what the frequencies of rotary positions are divided by."""

LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""The same of models with longrope: for all positions of long texts, and of short ones."""

ALL_FACTORS = (FACTORS, LONG_FACTORS, SHORT_FACTORS)

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
} | {name: name for name in ALL_FACTORS}  # read into the config (gguf_config.py)

_OF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
"""In the order of ``LayerNorms``."""

_HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
_PRODUCTS = {
    "qkv": ("attn_q", "attn_k", "attn_v"), "o": ("attn_output",), "gate_up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
}  # fmt: skip
_JOINED = {"qkv": "attn_qkv", "gate_up": "ffn_up"}


@dataclass(frozen=True)
class Architecture:
    """How files of one ``general.architecture`` differ from a checkpoint of its family."""

    model_type: str  # in transformers, and in ``FAMILIES``
    turned: bool = False  # rows of queries and keys lie in pairs, as the two that are rotated together
    by_transformers: bool = True  # whether transformers reads tokenizers of such files, by the name of their model


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", turned=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "phi3": Architecture("phi3"),
    "granite": Architecture("granite", turned=True, by_transformers=False),
    "smollm3": Architecture("smollm3", turned=True, by_transformers=False),
    "olmo2": Architecture("olmo2", by_transformers=False),
    "gemma": Architecture("gemma", by_transformers=False),
    "gemma2": Architecture("gemma2"),
    "gemma3": Architecture("gemma3_text"),
}
"""Files of others are read by transformers, where it can."""


@cache
def _names(architecture: str) -> dict[str, str]:
    """What a checkpoint calls the parts of a layer, by what a GGUF file does."""
    from outrider.models.llama_layer import HEAD_NORMS, LLAMA, PRODUCTS
    from outrider.models.transformers.families import FAMILIES  # brings torch along

    design = FAMILIES[ARCHITECTURES[architecture].model_type].design or LLAMA
    found = {theirs: ours for theirs, ours in zip(_NORMS, design.norms, strict=True) if ours is not None}
    if design.head_norms is not None:
        found |= dict(zip(_HEAD_NORMS, HEAD_NORMS, strict=True))
    for product, parts in _PRODUCTS.items():
        joined = design.joined.get(product)
        found |= {_JOINED[product]: joined} if joined else dict(zip(parts, PRODUCTS[product], strict=True))
    return found


def checkpoint_name(name: str, architecture: str) -> str | None:
    """What a checkpoint calls a tensor of a GGUF file; None where it is not known here."""
    if architecture not in ARCHITECTURES:
        return None
    found = _OF_LAYER.fullmatch(name)
    if found is None:
        return _WHOLE.get(name)
    layer, part, kind = found.groups()
    known = _names(architecture).get(part)
    return f"model.layers.{layer}.{known}.{kind}" if known else None
