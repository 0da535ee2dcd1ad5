"""What differs between transformers' model families: one table, and how positions of a row's own are made possible.

Most families need nothing: they take position ids and a four-dimensional mask. The few that compute positions
inside are given per-row versions of that one computation, set on the instance; no model code is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from outrider.models.llama_layer import AFTER, AROUND, LLAMA, WINDOWS, LayerDesign
from outrider.models.masks import Windows
from outrider.models.settings import offers, setting
from outrider.models.transformers import experts, rotary


def adapt(model: Any) -> Callable[[], None]:
    """Make a model's own position arithmetic accept a column of per-row offsets, and its experts take tokens alone.

    Where attention scores are capped they are: not by torch's own attention, which transformers took before 5.22.
    Rotary positions have angles of their own, whatever else is in a run. Idempotent -> what undoes it.
    """
    before: list[tuple[nn.Module, str, Any]] = []
    attention = model.config._attn_implementation
    capped = setting(model.config.get_text_config(decoder=True), "attn_logit_softcapping")
    if capped and attention == "sdpa":
        model.set_attn_implementation("eager")

    def put(module: Any, name: str, function: Callable[..., Any]) -> None:
        before.append((module, name, module.__dict__.get(name)))
        setattr(module, name, MethodType(function, module))

    for module in model.modules():
        if setting(module, "has_relative_attention_bias") and offers(module, "compute_bias"):
            put(module, "compute_bias", _ragged_relative_bias)
        if offers(module, "build_alibi_tensor"):
            put(module, "build_alibi_tensor", _ragged_alibi)
        if isinstance(module, nn.Embedding) and "position_ids" in signature(type(module).forward).parameters:
            put(module, "forward", _ragged_learned_positions)
        if experts.are_experts(module):
            put(module, "forward", experts.forward)
        if rotary.changes(module):
            put(module, "forward", rotary.forward)

    def undo() -> None:
        for module, name, old in before:
            rotary.forget(module)
            delattr(module, name)
            if old is not None:
                setattr(module, name, old)
        if capped and attention == "sdpa":
            model.config._attn_implementation = attention  # not by its setter, which newer versions refuse

    return undo


def _ragged_relative_bias(
    self: Any, query_length: int, key_length: int, device: Any = None, past_seen_tokens: int | Tensor = 0
) -> Tensor:
    """T5's binned relative positions, with a start per row: -> [B or 1, heads, queries, keys]."""
    device = self.relative_attention_bias.weight.device if device is None else device
    start = past_seen_tokens if isinstance(past_seen_tokens, Tensor) else torch.tensor([[past_seen_tokens]])
    query = start.to(device)[:, :, None] + torch.arange(query_length, device=device)[None, :, None]
    key = torch.arange(key_length, device=device)[None, None, :]
    bucket = self._relative_position_bucket(
        key - query,
        bidirectional=not self.is_decoder,
        num_buckets=self.relative_attention_num_buckets,
        max_distance=self.relative_attention_max_distance,
    )
    return self.relative_attention_bias(bucket).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def _ragged_alibi(self: Any, attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    """BLOOM's slopes times key position: rows start at position 0, so all share it -> [B * heads, 1, keys]."""
    rows, keys = attention_mask.shape[0], attention_mask.shape[-1]
    ones = torch.ones((rows, keys), dtype=torch.int64, device=attention_mask.device)
    return type(self).build_alibi_tensor(self, ones, num_heads, dtype)  # type: ignore[no-any-return]


def _ragged_learned_positions(self: Any, *args: Any, position_ids: Tensor | None = None, **kwargs: Any) -> Tensor:
    """BART, Marian and OPT look positions up in a table: a row of positions per sequence -> [B, w, size].

    Padding may stand past the end of the table; its result is never used.
    """
    if position_ids is None or position_ids.dim() != 2:
        return type(self).forward(self, *args, position_ids=position_ids, **kwargs)  # type: ignore[no-any-return]
    index = position_ids + setting(self, "offset", 0)
    return nn.functional.embedding(index.clamp(max=self.num_embeddings - 1), self.weight)


@dataclass(frozen=True)
class Family:
    """What is known of the models of one ``model_type`` of transformers."""

    tested: bool = False  # its output is compared with transformers' own in the tests; else, when a model is loaded
    llama_layers: str | None = None  # what its classes begin with, if they are a Llama's layers or of its ``design``
    own_mask: bool = False  # given no mask it looks at all a cache holds: such kernels read grouped heads as they are
    windowed: bool = False  # attention looks back as far as ``sliding_window`` says, in every layer
    design: LayerDesign | None = None  # its layers, where they are not quite a Llama's


_WINDOWED = LayerDesign(options=WINDOWS)
_PHI_3 = LayerDesign(
    joined={"qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"}, options=WINDOWS | {"partial_rotary_factor"}
)
_MULTIPLIERS = frozenset({"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})
_OLMO_2 = LayerDesign(norms=AFTER, late_rounding=True, head_norms="width")
_GEMMA = LayerDesign(norm_offset=1.0, late_rounding=True, activation="gelu_pytorch_tanh", root_scaled_embedding=True)
_GEMMA_OPTIONS = WINDOWS | {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"}
_GEMMA_2 = replace(_GEMMA, norms=AROUND, activation_option="hidden_activation", options=_GEMMA_OPTIONS)

FAMILIES: dict[str, Family] = {
    "llama": Family(tested=True, llama_layers="Llama", own_mask=True),
    "mistral": Family(tested=True, llama_layers="Mistral", own_mask=True, windowed=True, design=_WINDOWED),
    "qwen2": Family(tested=True, llama_layers="Qwen2", own_mask=True, design=_WINDOWED),
    "qwen3": Family(tested=True, llama_layers="Qwen3", own_mask=True, design=replace(_WINDOWED, head_norms="head")),
    "phi3": Family(tested=True, llama_layers="Phi3", windowed=True, design=_PHI_3),
    "granite": Family(tested=True, llama_layers="Granite", design=LayerDesign(options=_MULTIPLIERS)),
    "smollm3": Family(tested=True, llama_layers="SmolLM3", design=LayerDesign(options=WINDOWS | {"no_rope_layers"})),
    "olmo2": Family(tested=True, llama_layers="Olmo2", design=_OLMO_2),
    "gemma": Family(tested=True, llama_layers="Gemma", design=_GEMMA),
    "gemma2": Family(tested=True, llama_layers="Gemma2", design=_GEMMA_2),
    "gemma3_text": Family(tested=True, llama_layers="Gemma3", design=replace(_GEMMA_2, head_norms="head")),
} | dict.fromkeys(
    ("mixtral", "qwen3_moe", "gpt2", "gpt_neox", "opt", "bloom", "t5", "mt5", "bart", "marian"), Family(tested=True)
)
"""By ``model_type``. A family that is not here is run through its own layers, and compared with itself when loaded."""

_UNKNOWN = Family(windowed=True)


def family(config: Any) -> Family:
    return FAMILIES.get(config.model_type, _UNKNOWN)


def layer_design(config: Any) -> LayerDesign | None:
    """How a model's layers are built, for paths that have layers of their own; None: they have none like these."""
    known = family(config)
    design = LLAMA if known.design is None and known.llama_layers else known.design
    return design if design and setting(config, design.activation_option) == design.activation else None


def llama_classes(config: Any) -> str | None:
    """What the names of a model's classes begin with, if its layers have a design; None: they have none."""
    return family(config).llama_layers if layer_design(config) else None


def llama_layers(model: Any) -> list[Any]:
    """All decoder layers of a transformers model whose layers have a design; else none."""
    config = model.config.get_text_config(decoder=True)
    prefix = llama_classes(config)
    found = [module for module in model.modules() if type(module).__name__ == f"{prefix}DecoderLayer"]
    return found if prefix is not None and config.num_hidden_layers == len(found) else []


def sliding_windows(config: Any) -> Windows:
    """How far back attention looks: None (all), one window for all layers, or one per named layer type."""
    window: int | None = setting(config, "sliding_window")
    types, design = setting(config, "layer_types"), layer_design(config)
    if design is not None and not design.options >= WINDOWS:  # its layers do not ask, whatever the config holds
        return None
    if types:
        known = {"full_attention": None, "sliding_attention": window}
        return {name: known[name] for name in known if name in types} if set(types) <= set(known) else None
    return window if family(config).windowed else None


def supported(config: Any) -> str | None:
    """None, or why this model cannot be run with per-row positions."""
    types = set(setting(config, "layer_types") or ())
    unknown = types - {"full_attention", "sliding_attention"}
    if unknown:
        return f"its layers of type {sorted(unknown)} keep a state that cannot be rolled back"
    return None
