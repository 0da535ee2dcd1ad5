"""Llama-like models run layer by layer with fused kernels: ten launches a layer, and no module of transformers between.

The weights are those of a loaded model, joined where products read the same input; transformers' own forward reads
them as views and stays as it was. Same mathematics, other rounding in places, so the fused run is its own reference:
plain and speculative decoding both use it. Kernels have no gradient: training goes through transformers' forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outrider.kernels.attached import attach, attached, expect
from outrider.kernels.packed_linear import Joined
from outrider.kernels.row_products import quickest_rows
from outrider.kernels.triton import available
from outrider.models.llama_layer import parts_of
from outrider.models.settings import offers, setting
from outrider.models.transformers.families import family, llama_layers
from outrider.models.transformers.kv_cache import RaggedCache

Rotary = tuple[Tensor, Tensor]  # cos and sin [B, W, D]


@dataclass(frozen=True)
class Window:
    """Attached to an attention layer: how many tokens it looks back at; None: all of them."""

    size: int | None


@dataclass(frozen=True)
class RowPadding:
    """Attached to a linear layer: with fewer rows than this its product is slower than with as many."""

    count: int


def fuse(model: Any, device: torch.device) -> bool:
    """Join the weights of a model of a known family for ``run`` -> whether that was done."""
    config, layers = model.config.get_text_config(decoder=True), llama_layers(model)
    if not layers or model.dtype == torch.float64 or not available.run_on(device):
        return False
    for layer in layers:
        attention = layer.self_attn
        _join(*parts_of(layer, "qkv"))
        _join(*parts_of(layer, "gate_up"))
        attach(attention, Window(_window(attention, config)))
    set_row_padding(model, quickest=False)
    return True


def set_row_padding(model: Any, quickest: bool) -> None:
    """How many rows products of few are given: as many as they have, or as is quickest by a measurement.

    The latter only where bits do not depend on it: a clock must not decide them.
    """
    for layer in llama_layers(model):
        for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
            attach(last, RowPadding(quickest_rows(last.weight) if quickest else 1))


def _window(attention: Any, config: Any) -> int | None:
    """Of this layer; where it does not say, all have the one of the config, if the family has windows."""
    if offers(attention, "sliding_window"):
        return attention.sliding_window  # type: ignore[no-any-return]
    return setting(config, "sliding_window") if family(config).windowed else None


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


def run(
    model: Any, tokens: Tensor, position_ids: Tensor, cache: RaggedCache, states: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Tokens [B, W] at the cache's positions -> what the output layer reads [B, W, size], and what layers gave.

    ``position_ids`` are what rotary embeddings see of the positions. ``states``: 0 the embeddings, k layer k, -1 or
    the last layer what the output layer reads -> [B, W, L, size].
    """
    body = model.base_model
    x: Tensor = body.embed_tokens(tokens)
    turn: Rotary = body.rotary_emb(x, position_ids)
    given: dict[int, Tensor] = {}
    added: Tensor | None = None  # what the layer before adds to x
    for number, layer in enumerate(body.layers):
        x, normed = _normed(x, added, layer.input_layernorm)
        if number in states:
            given[number] = x
        x, normed = _normed(x, _attention(layer.self_attn, normed, turn, cache), layer.post_attention_layernorm)
        added = _mlp(layer.mlp, normed)
    hidden = _normed(x, added, body.norm)[1]
    given |= {-1: hidden, len(body.layers): hidden}
    return hidden, torch.stack([given[layer] for layer in states], 2) if states else None


def _normed(x: Tensor, added: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """The residual sum, and its norm."""
    from outrider.kernels.triton.rows import add_rms_norm, rms_norm

    if added is None:
        return x, rms_norm(x, norm.weight, norm.variance_epsilon)
    return add_rms_norm(x, added, norm.weight, norm.variance_epsilon)


def _attention(self: Any, x: Tensor, turn: Rotary, cache: RaggedCache) -> Tensor:
    from outrider.kernels.triton.attention import attend
    from outrider.kernels.triton.rows import rotate_and_store

    layer, positions = cache.layers[self.layer_idx], cache.place.positions
    qkv = _normed_heads(self, _together(self, x), *layer.keys.shape[1::2])
    if not setting(self, "use_rope", True):
        turn = torch.ones_like(turn[0]), torch.zeros_like(turn[1])
    queries = rotate_and_store(qkv, turn, positions, layer.keys, layer.values)
    flat = queries.flatten(0, 1).flatten(1)
    out = flat.new_empty((_room(self.o_proj, flat), flat.shape[1]))
    attend(queries, layer.keys, layer.values, positions, self.scaling, expect(self, Window).size, out)
    return self.o_proj(out)[: len(flat)].view(x.shape)  # type: ignore[no-any-return]


def _normed_heads(self: Any, qkv: Tensor, shared: int, depth: int) -> Tensor:
    """Norms of queries and keys, where the family has them; qkv [B, W, (HQ + 2 HK) D] side by side."""
    if not offers(self, "q_norm"):
        return qkv
    from outrider.kernels.triton.rows import rms_norm

    heads = qkv.view(*qkv.shape[:2], -1, depth)
    query, key, value = torch.split(heads, [heads.shape[2] - 2 * shared, shared, shared], 2)
    query, key = (
        rms_norm(each, norm.weight, norm.variance_epsilon) for each, norm in ((query, self.q_norm), (key, self.k_norm))
    )
    return torch.cat([query, key, value], 2).flatten(2)


def _mlp(self: Any, x: Tensor) -> Tensor:
    from outrider.kernels.triton.rows import silu_gate

    both = _together(self, x).flatten(0, -2)
    gated = silu_gate(both, _room(self.down_proj, both))
    return self.down_proj(gated)[: len(both)].view(x.shape)  # type: ignore[no-any-return]


def _room(last: Any, rows: Tensor) -> int:
    """The rows that a layer's product is given for these."""
    return max(len(rows), expect(last, RowPadding).count)
