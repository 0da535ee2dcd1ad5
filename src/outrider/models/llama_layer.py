"""The parts of a Llama-like model by the names that checkpoints and transformers give them, described once.

Every path that has such layers of its own reads them here: ``transformers/lean.py`` and ``transformers/fused.py`` join
the linear layers of a module, the engines write the same tensors into files of theirs.
"""

from __future__ import annotations

from typing import Any

PRODUCTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The matrix products of a layer, in the order in which they run. The parts of one read the same input."""

NORMS = ("input_layernorm", "post_attention_layernorm")
"""RMS norms of a layer: before attention, and before the gated MLP."""

EMBEDDING, LAST_NORM, OUTPUT = "model.embed_tokens.weight", "model.norm", "lm_head.weight"


def layer_name(layer: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{layer}"


def parts_of(layer: Any, product: str) -> tuple[Any, tuple[str, ...]]:
    """The module of a transformers layer that holds a product's linear layers, and their names in it."""
    owner = PRODUCTS[product][0].partition(".")[0]
    return getattr(layer, owner), tuple(part.partition(".")[2] for part in PRODUCTS[product])
