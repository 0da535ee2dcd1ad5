"""The decoder layers that published heads are made of: a Llama's or a Qwen3's, as a config.json describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.drafters.published.fields import Fields
from outrider.errors import require

FAMILIES = ("llama", "qwen3")
"""Kinds of decoder layer by ``model_type``: a Qwen3's has norms of queries and keys."""

ROTATIONS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Kinds of rotary positions by ``rope_type``, and the numbers each is described by."""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and options of a head's decoder layers: ``transformer_layer_config`` in the speculators format."""

    hidden_size: int
    inner_size: int
    heads: tuple[int, int]  # for queries and for keys
    head_size: int
    vocab_size: int  # of the target
    family: str = "llama"
    windows: tuple[int | None, ...] = (None,)  # of each layer: tokens back that attention sees; None: all
    norm_eps: float = 1e-6
    rotary_base: float = 10_000.0
    rotary: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    attention_bias: bool = False
    mlp_bias: bool = False
    max_positions: int | None = None  # for other programs, which make a table of so many

    def __post_init__(self) -> None:
        queries, keys = self.heads
        require(
            keys > 0 and queries % keys == 0 and self.head_size % 2 == 0,
            f"num_attention_heads {queries}, num_key_value_heads {keys} and head_dim {self.head_size} do not fit",
        )
        kind = self.rotary.get("rope_type")
        require(kind in ROTATIONS, f"rope_type {kind!r} is not known; known are {', '.join(ROTATIONS)}")
        for name in ROTATIONS[str(kind)]:
            given = self.rotary.get(name)
            fits = isinstance(given, (int, float)) and given > 0
            require(fits, f"{name} of rope_type {kind!r} must be a number above 0, got {given!r}")
        part = self.rotary.get("partial_rotary_factor", 1)
        require(part == 1, f"partial_rotary_factor is {part!r}; known are layers whose heads turn whole, 1")

    @property
    def depth(self) -> int:
        """How many layers there are."""
        return len(self.windows)

    def layer_weights(self, inputs: int | None = None) -> int:
        """Numbers in the matrices of a layer whose attention reads so many numbers, if not ``hidden_size``."""
        size, (queries, keys) = self.hidden_size, self.heads
        attention = (inputs or size) * (queries + 2 * keys) * self.head_size + size * queries * self.head_size
        return attention + 3 * size * self.inner_size

    @staticmethod
    def parse(settings: Fields) -> DecoderConfig:
        """From the config of a transformers model, whatever its version."""
        family, activation = settings.settings.get("model_type", "llama"), settings.settings.get("hidden_act", "silu")
        require(family in FAMILIES, f"model_type is {family!r}; known are {', '.join(FAMILIES)}")
        require(activation == "silu", f"hidden_act is {activation!r}; known is silu")
        size, heads = settings.whole("hidden_size"), settings.whole("num_attention_heads")
        base, rotary = _rotary(settings)
        longest = settings.settings.get("max_position_embeddings")
        return DecoderConfig(
            hidden_size=size,
            inner_size=settings.whole("intermediate_size"),
            heads=(heads, settings.whole("num_key_value_heads", heads)),
            head_size=settings.whole("head_dim", size // heads),
            vocab_size=settings.whole("vocab_size"),
            family=str(family),
            windows=_windows(settings),
            norm_eps=settings.number("rms_norm_eps", 1e-6),
            rotary_base=base,
            rotary=rotary,
            attention_bias=settings.switch("attention_bias"),
            mlp_bias=settings.switch("mlp_bias"),
            max_positions=longest if isinstance(longest, int) else None,
        )

    def for_speculators(self) -> dict[str, Any]:
        """As the speculators format has it."""
        found = {
            "model_type": self.family, "vocab_size": self.vocab_size, "hidden_size": self.hidden_size,
            "intermediate_size": self.inner_size, "num_hidden_layers": self.depth, "num_attention_heads": self.heads[0],
            "num_key_value_heads": self.heads[1], "head_dim": self.head_size, "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps, "attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias,
            "rope_parameters": {**self.rotary, "rope_theta": self.rotary_base}, "tie_word_embeddings": False,
        }  # fmt: skip
        if self.max_positions is not None:
            found["max_position_embeddings"] = self.max_positions
        sizes = [size for size in self.windows if size is not None]
        if sizes:
            kinds = ["full_attention" if size is None else "sliding_attention" for size in self.windows]
            found |= {"sliding_window": sizes[0], "layer_types": kinds, "use_sliding_window": True}
        return found


def _rotary(settings: Fields) -> tuple[float, Mapping[str, Any]]:
    """The base and the scaling of rotary positions, by the names of transformers before version 5 or since."""
    given = dict(settings.part("rope_parameters").settings or settings.part("rope_scaling").settings)
    if "sliding_attention" in given:  # by the kind of layer; the speculators package takes this one for all of them
        given = dict(Fields(given).part("sliding_attention").settings)
    base = Fields(given).number("rope_theta", settings.number("rope_theta", 10_000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    return base, {k: v for k, v in given.items() if k not in ("rope_theta", "type")} | {"rope_type": kind}


def _windows(settings: Fields) -> tuple[int | None, ...]:
    """Of each layer, as the configs of Llama and Qwen3 have them."""
    depth, kinds = settings.whole("num_hidden_layers", 1), settings.settings.get("layer_types")
    size = None if settings.settings.get("sliding_window") is None else settings.whole("sliding_window")
    if settings.settings.get("model_type") == "qwen3":  # whose config drops the window unless told to use it
        size = size if settings.switch("use_sliding_window") else None
        first = settings.whole("max_window_layers", 28, least=0)
        kinds = ["sliding_attention" if i >= first else "" for i in range(depth)] if kinds is None else kinds
    kinds = [""] * depth if kinds is None else kinds
    fits = isinstance(kinds, list) and len(kinds) == depth
    require(fits, f"layer_types must name each of num_hidden_layers {depth}, got {kinds!r}")
    return tuple(size if kind == "sliding_attention" else None for kind in kinds)
