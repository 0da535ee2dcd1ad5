"""The parts of a Llama-like model by the names that checkpoints and transformers give them, described once.

Every path that has such layers of its own reads them here: ``transformers/lean.py`` and ``transformers/fused.py`` join
the linear layers of a module, the engines write the same tensors into files of theirs. What another family's layers
have beside a Llama's is a ``LayerDesign``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

PRODUCTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The matrix products of a layer, in the order in which they run. The parts of one read the same input."""

NORMS = ("input_layernorm", "post_attention_layernorm")
"""RMS norms of a layer: before attention, and before the gated MLP."""

HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
"""RMS norms of queries and keys, where a family has them."""

EMBEDDING, LAST_NORM, OUTPUT = "model.embed_tokens.weight", "model.norm", "lm_head.weight"


def layer_name(layer: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{layer}"


def parts_of(layer: Any, product: str) -> tuple[Any, tuple[str, ...]]:
    """The module of a transformers layer that holds a product's linear layers, and their names in it."""
    owner = PRODUCTS[product][0].partition(".")[0]
    return getattr(layer, owner), tuple(part.partition(".")[2] for part in PRODUCTS[product])


class LayerNorms(NamedTuple):
    """The names of a layer's RMS norms by where they stand; None where there is none."""

    before_attention: str | None = NORMS[0]
    after_attention: str | None = None  # of what is added to the residual stream
    before_mlp: str | None = NORMS[1]
    after_mlp: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in self if name is not None]


@dataclass(frozen=True)
class LayerDesign:
    """What the layers of a family have beside a Llama's. The defaults are a Llama's layers.

    What differs from model to model is an option of the config; ``options`` names those that the family's layers read
    and an engine that runs this design computes (``engine/known_options.py``).
    """

    norms: LayerNorms = LayerNorms()
    norm_offset: float = 0.0  # what is added to the weights of all norms
    late_rounding: bool = False  # of norms in narrow types: behind their weights only, not before them, too
    head_norms: Literal["head", "width"] | None = None  # of queries and keys: over each head, or over all together
    joined: Mapping[str, str] = field(default_factory=dict)  # products whose matrices are one tensor, and its name
    activation: str = "silu"
    activation_option: str = "hidden_act"  # the option of the config that names it
    root_scaled_embedding: bool = False  # whether embeddings are multiplied with the root of their size
    options: frozenset[str] = frozenset()

    @property
    def is_nearly_llamas(self) -> bool:
        """Whether the layers are a Llama's but for windows, norms of each head, and layers without rotary positions."""
        more = None if self.head_norms == "head" else self.head_norms
        return replace(self, head_norms=more, options=self.options - WINDOWS - {"no_rope_layers"}) == LLAMA

    @property
    def is_llamas(self) -> bool:
        """Whether the layers are a Llama's but for windows of attention."""
        return replace(self, options=self.options - WINDOWS) == LLAMA


LLAMA = LayerDesign()

AROUND = LayerNorms(
    NORMS[0], "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)  # fmt: skip
"""Norms before and after both attention and MLP."""

AFTER = LayerNorms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
"""Norms after attention and MLP only."""

WINDOWS = frozenset({"sliding_window", "layer_types"})
"""Options of families whose layers may look back over a window only."""
