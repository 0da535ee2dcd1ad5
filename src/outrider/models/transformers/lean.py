"""Llama-like layers with fewer and larger operations, for CPUs: a run costs its weights, not its operators.

transformers' layer is about sixty small operations, and at nine rows they take as long as its matrices. Here queries,
keys and values are one product, so are gate and up, heads that share keys are rows of one attention, and nothing is
repeated or copied. Set on the instances of a loaded model; the classes stay transformers' own, and a run with another
cache than ours goes through their own forward. Same mathematics, other rounding in places: plain and speculative
decoding both use it, so they still agree to the bit.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from outrider.kernels.attached import attach, expect
from outrider.kernels.packed_linear import Joined, PartOf, packed, released
from outrider.models.llama_layer import parts_of
from outrider.models.settings import offers, setting
from outrider.models.transformers.families import layer_design, llama_layers
from outrider.models.transformers.kv_cache import RaggedCache


def make_lean(model: Any, rows: int, *, release: bool = False) -> int:
    """Every layer of a model of a family nearly like Llama, packed for runs of about ``rows`` rows -> how many.

    With ``release`` the weights that were joined are kept once, joined, and not a second time as they were.
    """
    design = layer_design(model.config.get_text_config(decoder=True))
    layers = llama_layers(model) if design is not None and design.is_nearly_llamas else []
    joined = [getattr(part, name) for layer in layers for part, names in _parts(layer) for name in names]
    if any(type(linear) is not nn.Linear for linear in joined):  # adapted or quantised: more than its weight
        return 0
    for layer in layers:
        for part, names in _parts(layer):
            _join(part, names, rows, release)
        layer.forward = MethodType(_layer, layer)
    return len(layers)


def _parts(layer: Any) -> tuple[tuple[Any, tuple[str, ...]], ...]:
    """Which linear layers read the same input."""
    return parts_of(layer, "qkv"), parts_of(layer, "gate_up")


def _join(module: Any, names: tuple[str, ...], rows: int, release: bool) -> None:
    """Linear layers that read the same input, as one."""
    parts = [getattr(module, name) for name in names]
    weight = packed(torch.cat([part.weight.detach() for part in parts]), rows)
    biased = parts[0].bias is not None
    joined = Joined(weight, torch.cat([part.bias.detach() for part in parts]) if biased else None)
    attach(module, joined)
    begin = 0
    for part in parts:
        attach(part, PartOf(joined, begin))  # ``pack`` need not lay it out a second time
        begin += part.out_features
        if release:
            part.weight = released(part.weight)
            part.forward = MethodType(_slice, part)


def _slice(self: Any, x: Tensor) -> Tensor:
    """A layer whose weight was released, run by itself: its columns of the joined product."""
    part = expect(self, PartOf)
    return part.joined(x)[..., part.begin : part.begin + self.out_features]


def _layer(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = False,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **kwargs: Any,
) -> Tensor:
    if not isinstance(past_key_values, RaggedCache) or position_embeddings is None or attention_mask is None:
        return type(self).forward(  # type: ignore[no-any-return]
            self, hidden_states, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, use_cache=use_cache, position_embeddings=position_embeddings, **kwargs,
        )  # fmt: skip
    x = hidden_states
    mixed = _attention(
        self.self_attn, _norm(self.input_layernorm, x), past_key_values, position_embeddings, attention_mask
    )
    x = x + mixed
    read = _norm(self.post_attention_layernorm, x)
    gate, up = expect(self.mlp, Joined)(read).chunk(2, -1)
    return x + self.mlp.down_proj(nn.functional.silu(gate) * up)  # type: ignore[no-any-return]


def _norm(norm: Any, x: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def _attention(self: Any, x: Tensor, cache: RaggedCache, turns: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """x [B, W, size] -> [B, W, size]; keys and values go into the cache on the way."""
    rows, width, _ = x.shape
    depth, groups = self.head_dim, self.num_key_value_groups
    layer = cache.layers[self.layer_idx]
    shared = layer.keys.shape[1]
    heads = shared * groups
    both = expect(self, Joined)(x).view(rows, width, heads + 2 * shared, depth)
    turned = both[:, :, : heads + shared]  # [B, W, H + Hk, D]
    if offers(self, "q_norm"):
        turned = torch.cat([_norm(self.q_norm, turned[:, :, :heads]), _norm(self.k_norm, turned[:, :, heads:])], 2)
    if setting(self, "use_rope", True):
        turned = _rotate(turned, *turns)
    place = cache.place
    layer.keys[place.rows, :, place.positions] = turned[:, :, heads:]
    layer.values[place.rows, :, place.positions] = both[:, :, heads + shared :]
    # Heads that share keys are rows of one attention: [B, Hk, G * W, D].
    query = turned[:, :, :heads].reshape(rows, width, shared, groups, depth).permute(0, 2, 3, 1, 4)
    query = query.reshape(rows, shared, groups * width, depth)
    # At nine rows two products and a softmax take two thirds of the time of torch's fused attention on a CPU.
    scores = torch.add(_grouped(mask, groups, cache), query @ layer.keys.transpose(-1, -2), alpha=self.scaling)
    found = scores.softmax(-1) @ layer.values
    found = found.view(rows, shared, groups, width, depth).permute(0, 3, 1, 2, 4).reshape(rows, width, heads * depth)
    return self.o_proj(found)  # type: ignore[no-any-return]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on x [B, W, H, D] with cos and sin [B, W, D], as transformers defines them."""
    half = x.shape[-1] // 2
    other = torch.cat([x[..., half:].neg(), x[..., :half]], -1)
    return x * cos[:, :, None] + other * sin[:, :, None]


def _grouped(mask: Tensor, groups: int, cache: RaggedCache) -> Tensor:
    """The mask [B, 1, W, C] for groups of queries [B, 1, G * W, C]; made once a run, by its first layer."""
    kept = cache.place.grouped
    if kept is None or kept[0] is not mask:
        wide = mask[:, :, None].expand(-1, -1, groups, -1, -1).flatten(2, 3)
        kept = cache.place.grouped = (mask, wide)
    return kept[1]
