"""The sizes of a T5-like model's layers, read from its config, and the names of its tensors in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.models.settings import setting

ACTIVATIONS = ("relu", "gelu_new", "gelu_pytorch_tanh", "silu")
"""Of feed-forward layers, as configs call them. The second and the third are one function."""

EMBEDDING, OUTPUT = "shared.weight", "lm_head.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""The embedding under other names, which some checkpoints hold as well."""

NEVER_READ = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
"""In the first checkpoints of T5; transformers, too, leaves it out."""

BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def t5_like(config: Any) -> bool:
    """Whether a model's layers are those of T5, whatever their sizes."""
    return config.model_type in ("t5", "mt5")


@dataclass(frozen=True)
class T5Sizes:
    """Layers, widths and heads of a T5-like model, as its config has them."""

    encoder: int  # layers
    decoder: int
    hidden: int
    heads: int
    depth: int
    inner: int  # of feed-forward layers
    gated: bool
    activation: str
    epsilon: float
    buckets: int  # of relative positions
    distance: int  # from which on relative positions are all alike
    scaled: bool  # whether the output layer reads hidden states over the root of their size
    vocabulary: int

    @staticmethod
    def of(config: Any) -> T5Sizes:
        return T5Sizes(
            config.num_layers, config.num_decoder_layers, config.d_model, config.num_heads, config.d_kv, config.d_ff,
            bool(config.is_gated_act), str(config.dense_act_fn), float(config.layer_norm_epsilon),
            config.relative_attention_num_buckets, config.relative_attention_max_distance,
            bool(setting(config, "scale_decoder_outputs", False)), config.vocab_size,
        )  # fmt: skip

    @property
    def obstacle(self) -> str | None:
        """Why the compiled layers cannot run these sizes, with what to do about it; None: they can."""
        if self.hidden % 16 or self.inner % 16 or self.heads * self.depth % 4:
            return f"it runs layers of a multiple of 16, not of {self.hidden} and {self.inner}; leave it out"
        if self.activation not in ACTIVATIONS:
            return f"it has no activation {self.activation!r}, only {', '.join(ACTIVATIONS)}; leave it out"
        return None

    @property
    def decoder_weights(self) -> int:
        """Numbers in the matrices of a decoder's run, but for the output layer."""
        attention, feed = self.hidden * self.heads * self.depth, self.hidden * self.inner
        return self.decoder * (6 * attention + (3 if self.gated else 2) * feed)

    def layers(self, stack: str) -> int:
        return self.encoder if stack == "encoder" else self.decoder

    def products(self, stack: str) -> dict[str, tuple[str, ...]]:
        """The matrix products of a layer, with the names of the matrices that are joined for each."""
        feed = 1 if stack == "encoder" else 2
        inner = ("wi_0", "wi_1") if self.gated else ("wi",)
        own = {
            "qkv": tuple(f"layer.0.SelfAttention.{part}" for part in "qkv"), "out": ("layer.0.SelfAttention.o",),
        }  # fmt: skip
        cross = {
            "cross_q": ("layer.1.EncDecAttention.q",), "cross_out": ("layer.1.EncDecAttention.o",),
            "cross_kv": ("layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
        }  # fmt: skip
        rest = {
            "inner": tuple(f"layer.{feed}.DenseReluDense.{part}" for part in inner),
            "outer": (f"layer.{feed}.DenseReluDense.wo",),
        }
        return own | (cross if stack == "decoder" else {}) | rest

    def shape(self, product: str) -> tuple[int, int]:
        """[out, in] of each matrix of a product."""
        wide = self.heads * self.depth
        if product in ("out", "cross_out"):
            return self.hidden, wide
        if product in ("inner", "outer"):
            return (self.inner, self.hidden) if product == "inner" else (self.hidden, self.inner)
        return wide, self.hidden

    def norms(self, stack: str) -> tuple[str, ...]:
        """Before attention, cross-attention and feed-forward; an encoder's second stands for none and is never read."""
        places = (0, 0, 1) if stack == "encoder" else (0, 1, 2)
        return tuple(f"layer.{place}.layer_norm" for place in places)

    def names(self) -> list[str]:
        """All products, in the order in which they are written."""
        return [
            f"{stack}.{layer}.{product}"
            for stack in ("encoder", "decoder")
            for layer in range(self.layers(stack))
            for product in self.products(stack)
        ] + ["output"]
