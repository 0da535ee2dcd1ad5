"""The shape of an EAGLE-3 head, as its config.json tells it: in the speculators format, or of a plain repository."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.errors import BadOption, require

SPECULATORS = "speculators_model_type"
"""The field that every config.json of the speculators format has."""

PLAIN = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Architectures of plain EAGLE-3 repositories: SpecForge's and the authors' own, vLLM's and AngelSlim's."""

_DECODERS = ("llama", "qwen3")
"""Kinds of decoder layer that an EAGLE-3 layer is made of here."""

ROTATIONS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Kinds of rotary positions by ``rope_type``, and the numbers each is described by."""


@dataclass(frozen=True)
class Eagle3Config:
    """Sizes and options of an EAGLE-3 head with one decoder layer.

    ``fc`` makes one state of the target's states behind layers ``layers``. The decoder layer reads that state and the
    embedding of the next token side by side, and the next guess reads the layer's own output in place of the state.
    """

    hidden_size: int
    inner_size: int
    heads: tuple[int, int]  # for queries and for keys
    head_size: int
    vocab_size: int  # of the target
    draft_vocab_size: int  # tokens that the head can draft
    target_size: int  # hidden size of the target
    layers: tuple[int, ...] | None = None  # so many layers of the target have run; None: see ``resolved``
    decoder: str = "llama"  # qwen3: with norms of queries and keys
    norm_eps: float = 1e-6
    rotary_base: float = 10_000.0
    rotary: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    window: int | None = None  # tokens back that attention sees; None: all
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_before_residual: bool = False  # the residual stream begins with the normed state
    norm_before_fc: bool = False  # one norm of all states side by side
    fc_norm: bool = False  # a norm of each state
    norm_output: bool = False  # the next guess reads the output behind the last norm, not before it
    gamma: int = 4  # guesses it is best asked for
    target_name: str | None = None
    target_architectures: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        queries, keys = self.heads
        require(
            keys > 0 and queries % keys == 0 and self.head_size % 2 == 0,
            f"num_attention_heads {queries}, num_key_value_heads {keys} and head_dim {self.head_size} do not fit",
        )
        require(not (self.norm_before_fc and self.fc_norm), "norm_before_fc and fc_norm exclude each other")
        kind = self.rotary.get("rope_type")
        require(kind in ROTATIONS, f"rope_type {kind!r} is not known; known are {', '.join(ROTATIONS)}")
        for name in ROTATIONS[str(kind)]:
            given = self.rotary.get(name)
            fits = isinstance(given, (int, float)) and given > 0
            require(fits, f"{name} of rope_type {kind!r} must be a number above 0, got {given!r}")

    @property
    def reads(self) -> int:
        """Layers of the target it reads: three where nothing is said."""
        return 3 if self.layers is None else len(self.layers)

    def resolved(self, layers: int) -> Eagle3Config:
        """For a target of so many layers. Where the checkpoint names none, vLLM and SGLang read these three."""
        if self.layers is not None:
            return self
        return replace(self, layers=(2, layers // 2, layers - 3))

    @property
    def weights_read(self) -> int:
        """Numbers a guess multiplies with. ``fc`` is no part of a guess."""
        size, (queries, keys) = self.hidden_size, self.heads
        attention = 2 * size * (queries + 2 * keys) * self.head_size + size * queries * self.head_size
        return attention + 3 * size * self.inner_size + self.draft_vocab_size * size

    @staticmethod
    def parse(settings: Mapping[str, Any]) -> Eagle3Config:
        """From the content of a config.json; BadOption where it is of no head that can be run here."""
        return _of_speculators(_Fields(settings)) if SPECULATORS in settings else _of_plain(_Fields(settings))

    def for_speculators(self) -> dict[str, Any]:
        """The config.json of the speculators format."""
        inner = {
            "model_type": self.decoder, "vocab_size": self.vocab_size, "hidden_size": self.hidden_size,
            "intermediate_size": self.inner_size, "num_hidden_layers": 1, "num_attention_heads": self.heads[0],
            "num_key_value_heads": self.heads[1], "head_dim": self.head_size, "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps, "attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias,
            "rope_parameters": {**self.rotary, "rope_theta": self.rotary_base}, "tie_word_embeddings": False,
        }  # fmt: skip
        if self.window is not None:
            inner |= {"sliding_window": self.window, "layer_types": ["sliding_attention"], "use_sliding_window": True}
        return {
            "architectures": ["Eagle3DraftModel"],
            SPECULATORS: "eagle3",
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": self.target_size,
            "eagle_aux_hidden_state_layer_ids": None if self.layers is None else list(self.layers),
            **{name: vars(self)[name] for name in _SWITCHES},
            "transformer_layer_config": inner,
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": self.gamma}],
                "verifier": {"name_or_path": self.target_name, "architectures": list(self.target_architectures)},
            },
        }


_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


class _Fields:
    """The fields of a config, each checked as it is read."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.settings.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadOption(f"{name} must be a whole number from 1 on, got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.settings.get(name)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise BadOption(f"{name} must be a finite number above 0, got {value!r}")
        return float(value)

    def switch(self, name: str) -> bool:
        value = self.settings.get(name)
        require(value is None or isinstance(value, bool), f"{name} must be true or false, got {value!r}")
        return bool(value)

    def part(self, name: str) -> _Fields:
        value = self.settings.get(name)
        require(value is None or isinstance(value, dict), f"{name} must be an object, got {value!r}")
        return _Fields(value or {})

    def layers(self, name: str) -> tuple[int, ...] | None:
        value = self.settings.get(name)
        if value is None:
            return None
        fits = isinstance(value, list) and value and all(type(layer) is int and layer >= 0 for layer in value)
        require(bool(fits), f"{name} must be a list of layers, got {value!r}")
        return tuple(value)


def _of_speculators(config: _Fields) -> Eagle3Config:
    kind = config.settings[SPECULATORS]
    require(kind == "eagle3", f"{SPECULATORS} is {kind!r}, and of the speculators format EAGLE-3 heads alone are run")
    made = config.part("speculators_config")
    methods = made.settings.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    target = made.part("verifier").settings
    layers = config.layers("eagle_aux_hidden_state_layer_ids")
    return _made(config, config.part("transformer_layer_config"), layers, target, _Fields(first))


def _of_plain(config: _Fields) -> Eagle3Config:
    inner = config.part("eagle_config")
    # Here the output of layer 0 is named 0 by some trainers and 1 by others: three layers that begin with 1 are the
    # former's [1, n/2 - 1, n - 4], since the latter begin with 2. SGLang tells them apart in the same way.
    layers = config.layers("eagle_aux_hidden_state_layer_ids") or inner.layers("eagle_aux_hidden_state_layer_ids")
    if layers is not None and layers[0] == 1:
        layers = tuple(layer + 1 for layer in layers)
    return _made(config, config, layers, {}, _Fields({}))


def _made(
    head: _Fields, inner: _Fields, layers: tuple[int, ...] | None, target: Mapping[str, Any], proposal: _Fields
) -> Eagle3Config:
    decoder, activation = inner.settings.get("model_type", "llama"), inner.settings.get("hidden_act", "silu")
    require(decoder in _DECODERS, f"model_type is {decoder!r}; known are {', '.join(_DECODERS)}")
    require(activation == "silu", f"hidden_act is {activation!r}; known is silu")
    deep = inner.whole("num_hidden_layers", 1)
    require(deep == 1, f"num_hidden_layers is {deep}; heads of one layer alone are run")
    size, heads = inner.whole("hidden_size"), inner.whole("num_attention_heads")
    vocab_size = inner.whole("vocab_size")
    base, rotary = _rotary(inner)
    name, kinds = target.get("name_or_path"), target.get("architectures")
    return Eagle3Config(
        hidden_size=size,
        inner_size=inner.whole("intermediate_size"),
        heads=(heads, inner.whole("num_key_value_heads", heads)),
        head_size=inner.whole("head_dim", size // heads),
        vocab_size=vocab_size,
        draft_vocab_size=head.whole("draft_vocab_size", vocab_size),
        target_size=head.whole("target_hidden_size", size),
        layers=layers,
        decoder=decoder,
        norm_eps=inner.number("rms_norm_eps", 1e-6),
        rotary_base=base,
        rotary=rotary,
        window=_window(inner),
        attention_bias=inner.switch("attention_bias"),
        mlp_bias=inner.switch("mlp_bias"),
        **{name: head.switch(name) for name in _SWITCHES},
        gamma=proposal.whole("speculative_tokens", Eagle3Config.gamma),
        target_name=name if isinstance(name, str) else None,
        target_architectures=tuple(map(str, kinds)) if isinstance(kinds, Sequence) else (),
    )


def _rotary(inner: _Fields) -> tuple[float, Mapping[str, Any]]:
    """The base and the scaling of rotary positions, by the names of transformers before version 5 or since."""
    given = dict(inner.part("rope_parameters").settings or inner.part("rope_scaling").settings)
    base = _Fields(given).number("rope_theta", inner.number("rope_theta", 10_000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    return base, {k: v for k, v in given.items() if k not in ("rope_theta", "type")} | {"rope_type": kind}


def _window(inner: _Fields) -> int | None:
    kinds = inner.settings.get("layer_types")
    slides = isinstance(kinds, list) and kinds[:1] == ["sliding_attention"]
    if inner.settings.get("model_type") == "qwen3":  # whose config drops the window unless told to use it
        slides = slides and inner.switch("use_sliding_window")
    return inner.whole("sliding_window") if slides else None
