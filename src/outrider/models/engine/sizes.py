"""The sizes of a Llama-like model's layers and what they are scaled by, read from its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.models.llama_layer import PRODUCTS, LayerDesign
from outrider.models.settings import setting
from outrider.models.transformers.families import layer_design


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
    rotary: int  # numbers of a head that rotary positions turn: the first ones
    rotated: tuple[bool, ...]  # which layers have rotary positions

    @staticmethod
    def of(config: Any) -> Sizes:
        depth = setting(config, "head_dim") or config.hidden_size // config.num_attention_heads
        option, layers = _options(config), config.num_hidden_layers
        part = (setting(config, "rope_parameters") or {}).get("partial_rotary_factor")  # known_options.py admits it
        return Sizes(
            layers, config.hidden_size, config.num_attention_heads, config.num_key_value_heads,
            depth, config.intermediate_size, config.rms_norm_eps,
            rotary=int(depth * part) if part else depth,
            rotated=tuple(bool(each) for each in option.get("no_rope_layers") or [True] * layers),
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


@dataclass(frozen=True)
class Scales:
    """What a model multiplies its numbers with on their way, and bounds (``cap * tanh(x / cap)``); 0: none."""

    attention: float  # of queries times keys
    embedding: float = 1.0
    residual: float = 1.0  # of what attention and MLP add
    logits: float = 1.0
    attention_cap: float = 0.0
    logits_cap: float = 0.0

    @staticmethod
    def of(config: Any) -> Scales:
        option, sizes, design = _options(config), Sizes.of(config), layer_design(config)
        squares = option.get("query_pre_attn_scalar") or sizes.depth
        root = sizes.hidden**0.5 if design is not None and design.root_scaled_embedding else 1.0
        return Scales(
            attention=float(option.get("attention_multiplier", squares**-0.5)),
            embedding=float(option.get("embedding_multiplier", root)),
            residual=float(option.get("residual_multiplier", 1.0)),
            logits=1.0 / float(option.get("logits_scaling", 1.0)),
            attention_cap=float(option.get("attn_logit_softcapping") or 0.0),
            logits_cap=float(option.get("final_logit_softcapping") or 0.0),
        )


def _options(config: Any) -> dict[str, Any]:
    """The options of the config that its family's design reads: those of other families are without effect."""
    design = layer_design(config)
    names = design.options if design is not None else ()
    return {name: value for name in names if (value := setting(config, name)) is not None}


@dataclass(frozen=True)
class TensorRows:
    """Rows of a checkpoint's tensor: all of them, or some."""

    name: str
    first: int = 0
    count: int | None = None  # None: all


class PartNames:
    """Where a checkpoint has the matrices and biases of a layer: each for itself, or joined with others."""

    def __init__(self, design: LayerDesign, sizes: Sizes) -> None:
        self._joined: dict[str, TensorRows] = {}
        for product, tensor in design.joined.items():
            first = 0
            for part in PRODUCTS[product]:
                count = sizes.shapes()[part.rpartition(".")[2]][0]
                self._joined[part] = TensorRows(tensor, first, count)
                first += count

    def __call__(self, name: str) -> TensorRows:
        """By the name of a tensor as a Llama has it."""
        for part, rows in self._joined.items():
            prefix, found, kind = name.rpartition(f".{part}.")
            if found:
                return TensorRows(f"{prefix}.{rows.name}.{kind}", rows.first, rows.count)
        return TensorRows(name)

    @staticmethod
    def of(config: Any) -> PartNames:
        design = layer_design(config)
        assert design is not None, "the choice of the engine knows the model's layers"
        return PartNames(design, Sizes.of(config))
