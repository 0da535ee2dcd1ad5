"""The sizes of a Llama-like model's layers, read from its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.models.settings import setting


@dataclass(frozen=True)
class Sizes:
    """Layer count, widths and heads of a Llama-like model, as its config has them."""

    layers: int
    hidden: int
    heads: int
    shared: int  # heads of keys and values
    depth: int
    inner: int  # of the gated layers
    epsilon: float

    @staticmethod
    def of(config: Any) -> Sizes:
        depth = setting(config, "head_dim") or config.hidden_size // config.num_attention_heads
        return Sizes(
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.num_key_value_heads,
            depth, config.intermediate_size, config.rms_norm_eps,
        )  # fmt: skip

    @property
    def groups(self) -> int:
        return self.heads // self.shared

    @property
    def weights(self) -> int:
        """Numbers in the matrices of all layers."""
        return self.layers * sum(rows * columns for rows, columns in self.shapes().values())

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Of a layer's matrices, [out, in], by what checkpoints call them."""
        own, shared = self.heads * self.depth, self.shared * self.depth
        return {
            "q_proj": (own, self.hidden), "k_proj": (shared, self.hidden), "v_proj": (shared, self.hidden),
            "o_proj": (self.hidden, own), "gate_proj": (self.inner, self.hidden), "up_proj": (self.inner, self.hidden),
            "down_proj": (self.hidden, self.inner),
        }  # fmt: skip
