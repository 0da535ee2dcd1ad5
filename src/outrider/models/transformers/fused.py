"""Llama-like layers with their small operations fused: a dozen launches a layer instead of forty.

Set on the instances of a loaded model, as ``packing.py`` does on a CPU; the classes stay transformers' own, and a
run with another cache than ours goes through their own forward. Same mathematics, other rounding in places, so the
fused model is its own reference: plain and speculative decoding both use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from outrider.kernels.attached import attach, attached, expect
from outrider.kernels.packed_linear import Joined
from outrider.kernels.row_products import quickest_rows
from outrider.kernels.triton import available
from outrider.models.settings import offers, setting
from outrider.models.transformers.families import LLAMA_LIKE
from outrider.models.transformers.kv_cache import RaggedCache


@dataclass(frozen=True)
class Window:
    """Attached to an attention layer: how many tokens it looks back at; None: all of them."""

    size: int | None


@dataclass(frozen=True)
class LeastRows:
    """Attached to a linear layer: with fewer rows than this its product is slower than with as many."""

    count: int


def fuse(model: Any, device: torch.device) -> bool:
    """Fuse every layer of a model of a known family -> whether that was done."""
    config = model.config.get_text_config(decoder=True)
    prefix = LLAMA_LIKE.get(config.model_type)
    if prefix is None or not available.run_on(device) or setting(config, "hidden_act") != "silu":
        return False
    layers = [m for m in model.modules() if type(m).__name__ == f"{prefix}DecoderLayer"]
    if not layers or config.num_hidden_layers != len(layers) or model.dtype == torch.float64:
        return False
    for module in model.modules():
        if type(module).__name__ == f"{prefix}RMSNorm":
            module.forward = MethodType(_norm, module)
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        _join(attention, ("q_proj", "k_proj", "v_proj"))
        _join(mlp, ("gate_proj", "up_proj"))
        attach(attention, Window(_window(attention, config)))
        for last in (attention.o_proj, mlp.down_proj):
            attach(last, LeastRows(quickest_rows(last.weight)))
        attention.forward = MethodType(_attention, attention)
        mlp.forward = MethodType(_mlp, mlp)
        layer.forward = MethodType(_layer, layer)
    return True


def _window(attention: Any, config: Any) -> int | None:
    """Of this layer; a Mistral's layers all have the window of its config."""
    if offers(attention, "sliding_window"):
        return attention.sliding_window  # type: ignore[no-any-return]
    return setting(config, "sliding_window") if config.model_type == "mistral" else None


def _join(module: Any, names: tuple[str, ...]) -> None:
    """Linear layers that read the same input as one, in one piece of memory that the single ones become views of."""
    if attached(module, Joined) is not None:
        return
    parts = [getattr(module, name) for name in names]
    biased = parts[0].bias is not None
    bias = torch.cat([part.bias.detach() for part in parts]) if biased else None
    joined = Joined(torch.cat([part.weight.detach() for part in parts]), bias)
    attach(module, joined)
    start = 0
    for part in parts:
        end = start + part.weight.shape[0]
        part.weight = nn.Parameter(joined.weight[start:end], requires_grad=False)
        if bias is not None:
            part.bias = nn.Parameter(bias[start:end], requires_grad=False)
        start = end


def _together(module: Any, x: Tensor) -> Tensor:
    joined = expect(module, Joined)
    return nn.functional.linear(x, joined.weight, joined.bias)


def _learning(x: Tensor) -> bool:
    """The kernels have no gradient: where one is wanted, the layers' own forward runs."""
    return x.requires_grad and torch.is_grad_enabled()


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    if _learning(hidden_states):
        return type(self).forward(self, hidden_states)  # type: ignore[no-any-return]
    from outrider.kernels.triton.rows import rms_norm

    return rms_norm(hidden_states, self.weight, self.variance_epsilon)


def _mlp(self: Any, x: Tensor) -> Tensor:
    if _learning(x):
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    from outrider.kernels.triton.rows import silu_gate

    both = _together(self, x).flatten(0, -2)
    gated = silu_gate(both, _room(self.down_proj, both))
    return self.down_proj(gated)[: len(both)].view(x.shape)  # type: ignore[no-any-return]


def _room(last: Any, rows: Tensor) -> int:
    """The rows that a layer's product is given for these."""
    return max(len(rows), expect(last, LeastRows).count)


def _attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if not isinstance(past_key_values, RaggedCache) or position_embeddings is None:
        return type(self).forward(  # type: ignore[no-any-return]
            self, hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs
        )
    from outrider.kernels.triton.attention import attend
    from outrider.kernels.triton.rows import rotate_and_store

    layer, positions = past_key_values.layers[self.layer_idx], past_key_values.place.positions
    queries = rotate_and_store(_together(self, hidden_states), position_embeddings, positions, layer.keys, layer.values)
    flat = queries.flatten(0, 1).flatten(1)
    out = flat.new_empty((_room(self.o_proj, flat), flat.shape[1]))
    attend(queries, layer.keys, layer.values, positions, self.scaling, expect(self, Window).size, out)
    return self.o_proj(out)[: len(flat)].view(hidden_states.shape), None


def _layer(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
    if _learning(hidden_states):
        return type(self).forward(self, hidden_states, **kwargs)  # type: ignore[no-any-return]
    from outrider.kernels.triton.rows import add_rms_norm

    mixed, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    second = self.post_attention_layernorm
    hidden_states, normed = add_rms_norm(hidden_states, mixed, second.weight, second.variance_epsilon)
    return hidden_states + self.mlp(normed)  # type: ignore[no-any-return]
