"""Llama-like models run layer by layer with fused kernels: ten launches for a Llama's, and no module of transformers.

The weights are those of a loaded model, joined where products read the same input; transformers' own forward reads
them as views and stays as it was. What a family's layers have beside a Llama's is read from its ``LayerDesign``, as the
engines on a CPU read it. Same mathematics, other rounding in places, so the fused run is its own reference: plain and
speculative decoding both use it. Kernels have no gradient: training goes through transformers' forward.
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
from outrider.models.engine.known_options import unknown_option
from outrider.models.engine.rotary import NO_ROTATION, kinds_of_layers
from outrider.models.engine.sizes import Scales
from outrider.models.llama_layer import LayerDesign, parts_of
from outrider.models.transformers.families import layer_design, llama_layers, sliding_windows
from outrider.models.transformers.kv_cache import RaggedCache

Rotary = tuple[Tensor, Tensor]  # cos and sin [B, W, numbers of a head that are turned]


@dataclass(frozen=True)
class FusedModel:
    """Attached to a model: what its layers compute."""

    design: LayerDesign
    scales: Scales
    embedding: float  # what embeddings are multiplied with: settled here, as a captured step makes no tensors of it
    epsilon: float
    kinds: tuple[str, ...]  # of rotary positions, by layer
    windows: tuple[int | None, ...]  # how many tokens attention looks back at, by layer; None: all of them

    @staticmethod
    def of(config: Any, design: LayerDesign, dtype: torch.dtype) -> FusedModel:
        kinds, windows, scales = kinds_of_layers(config), sliding_windows(config), Scales.of(config)
        scale = scales.embedding
        if design.root_scaled_embedding:  # by a number of the model's type
            scale = float(torch.tensor(scale, dtype=dtype))
        by_layer = (
            [windows[kind] for kind in config.layer_types] if isinstance(windows, dict) else [windows] * len(kinds)
        )
        return FusedModel(design, scales, scale, float(config.rms_norm_eps), tuple(kinds), tuple(by_layer))

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        from outrider.kernels.triton.rows import rms_norm

        return rms_norm(x, weight, self.epsilon, self.design.norm_offset, self.design.late_rounding)

    def added(self, x: Tensor, more: Tensor, after: Tensor | None, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """The residual sum, and what reads it: its norm, where there is one before the next part of the layers.

        ``after``: the weight of the norm of what is added, if there is one.
        """
        from outrider.kernels.triton.rows import add_rms_norm

        design = self.design
        return add_rms_norm(
            x, more, before, self.epsilon, design.norm_offset, design.late_rounding, after, self.scales.residual
        )


@dataclass(frozen=True)
class Norms:
    """Attached to a layer: its norms by where they stand."""

    before_attention: Any
    after_attention: Any
    before_mlp: Any
    after_mlp: Any

    @staticmethod
    def of(layer: Any, design: LayerDesign) -> Norms:
        return Norms(*(None if name is None else layer.get_submodule(name) for name in design.norms))


@dataclass(frozen=True)
class RowPadding:
    """Attached to a linear layer: with fewer rows than this its product is slower than with as many."""

    count: int


def fuse(model: Any, device: torch.device) -> bool:
    """Join the weights of a model of a known family for ``run`` -> whether that was done.

    Not where its config asks for something that fused layers do not compute.
    """
    config, layers = model.config.get_text_config(decoder=True), llama_layers(model)
    design = layer_design(config)
    if not layers or design is None or model.dtype == torch.float64 or not available.run_on(device):
        return False
    if not _are_all(layers, model.base_model) or unknown_option(config, design) is not None:
        return False
    for layer in layers:
        attach(layer, Norms.of(layer, design))
        for product in ("qkv", "gate_up"):
            if product not in design.joined:
                _join(*parts_of(layer, product))
    attach(model, FusedModel.of(config, design, model.dtype))
    set_row_padding(model, quickest=False)
    return True


def _are_all(layers: Sequence[Any], body: nn.Module) -> bool:
    """Whether a model is these layers between an embedding and a norm, and not a part of a larger one."""
    own = dict(body.named_children())
    found = own.get("layers")
    return (
        isinstance(found, nn.ModuleList)
        and list(found) == layers
        and {"embed_tokens", "norm", "rotary_emb"} <= set(own)
    )


def set_row_padding(model: Any, quickest: bool) -> None:
    """How many rows products of few are given: as many as they have, or as is quickest by a measurement.

    The latter only where bits do not depend on it: a clock must not decide them.
    """
    for layer in llama_layers(model):
        for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
            attach(last, RowPadding(quickest_rows(last.weight) if quickest else 1))


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


def _together(layer: Any, product: str, design: LayerDesign, x: Tensor) -> Tensor:
    """A product whose parts read the same input, by one matrix: of the checkpoint, or joined here."""
    if product in design.joined:
        return layer.get_submodule(design.joined[product])(x)  # type: ignore[no-any-return]
    joined = expect(parts_of(layer, product)[0], Joined)
    return nn.functional.linear(x, joined.weight, joined.bias)


def run(
    model: Any, tokens: Tensor, position_ids: Tensor, cache: RaggedCache, states: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Tokens [B, W] at the cache's positions -> what the output layer reads [B, W, size], and what layers gave.

    ``position_ids`` are what rotary embeddings see of the positions. ``states``: 0 the embeddings, k layer k, -1 what
    the output layer reads -> [B, W, L, size].
    """
    fused, body = expect(model, FusedModel), model.base_model
    x = _embedded(body, tokens, fused)
    turns = _turns(body, x, position_ids, fused, cache.layers[0].keys.shape[3])
    given: dict[int, Tensor] = {}
    added: Tensor | None = None  # what the layer before adds to x
    after: Tensor | None = None  # the weight of the norm of that
    for number, layer in enumerate(body.layers):
        norms = expect(layer, Norms)
        before = _weight(norms.before_attention)
        if added is not None:
            x, normed = fused.added(x, added, after, before)
        else:
            normed = x if before is None else fused.normed(x, before)
        if number in states:
            given[number] = x
        found = _attention(layer, number, normed, turns[fused.kinds[number]], cache, fused)
        x, normed = fused.added(x, found, _weight(norms.after_attention), _weight(norms.before_mlp))
        added, after = _mlp(layer, normed, fused.design), _weight(norms.after_mlp)
    assert added is not None, "a model has layers"
    last, hidden = fused.added(x, added, after, body.norm.weight)
    given |= {-1: hidden, len(body.layers): last}
    return hidden, torch.stack([given[layer] for layer in states], 2) if states else None


def logits(model: Any, hidden: Tensor) -> Tensor:
    """Of what the output layer reads: scaled and bounded as the family has it, past hooks on that layer."""
    scales = expect(model, FusedModel).scales
    found: Tensor = model.get_output_embeddings().forward(hidden)
    if scales.logits != 1:
        found = found * scales.logits
    return torch.tanh(found / scales.logits_cap) * scales.logits_cap if scales.logits_cap else found


def _weight(norm: Any) -> Tensor | None:
    return None if norm is None else norm.weight


def _embedded(body: Any, tokens: Tensor, fused: FusedModel) -> Tensor:
    """Embeddings of tokens, multiplied as the family has it: releases of transformers do that in different places."""
    if fused.embedding == 1:
        return body.embed_tokens(tokens)  # type: ignore[no-any-return]
    return nn.functional.embedding(tokens, body.embed_tokens.weight) * fused.embedding


def _turns(body: Any, x: Tensor, position_ids: Tensor, fused: FusedModel, depth: int) -> dict[str, Rotary]:
    """Of each kind of rotary positions that layers with heads of ``depth`` numbers have."""
    turns: dict[str, Rotary] = {}
    for kind in dict.fromkeys(fused.kinds):
        if kind != NO_ROTATION:
            turns[kind] = body.rotary_emb(x, position_ids, *([kind] if kind else []))
    if NO_ROTATION in fused.kinds:
        ones = x.new_ones((*position_ids.shape, depth))
        turns[NO_ROTATION] = ones, torch.zeros_like(ones)
    return turns


def _attention(layer: Any, number: int, x: Tensor, turn: Rotary, cache: RaggedCache, fused: FusedModel) -> Tensor:
    from outrider.kernels.triton.attention import attend
    from outrider.kernels.triton.rows import rotate_and_store

    self, kept, positions = layer.self_attn, cache.layers[number], cache.place.positions
    qkv = _normed_heads(self, _together(layer, "qkv", fused.design, x), kept.keys, fused)
    queries = rotate_and_store(qkv, turn, positions, kept.keys, kept.values)
    flat = queries.flatten(0, 1).flatten(1)
    out = flat.new_empty((_room(self.o_proj, flat), flat.shape[1]))
    at, paths = cache.place.tree or (positions, None)
    scales, window = fused.scales, fused.windows[number]
    attend(queries, kept.keys, kept.values, at, scales.attention, window, out, paths, scales.attention_cap)
    return self.o_proj(out)[: len(flat)].view(x.shape)  # type: ignore[no-any-return]


def _normed_heads(self: Any, qkv: Tensor, keys: Tensor, fused: FusedModel) -> Tensor:
    """Norms of queries and keys, where the family has them; qkv [B, W, (HQ + 2 HK) D] side by side, keys the buffer."""
    kind, shared, depth = fused.design.head_norms, keys.shape[1], keys.shape[3]
    if kind is None:
        return qkv
    heads = qkv.view(*qkv.shape[:2], -1, depth)
    query, key, value = torch.split(heads, [heads.shape[2] - 2 * shared, shared, shared], 2)
    if kind == "width":
        query, key, value = query.flatten(2), key.flatten(2), value.flatten(2)
    query, key = fused.normed(query, self.q_norm.weight), fused.normed(key, self.k_norm.weight)
    found = torch.cat([query, key, value], 2)
    return found.flatten(2) if kind == "head" else found


def _mlp(layer: Any, x: Tensor, design: LayerDesign) -> Tensor:
    from outrider.kernels.triton.rows import gelu_gate, silu_gate

    self = layer.mlp
    both = _together(layer, "gate_up", design, x).flatten(0, -2)
    gate = silu_gate if design.activation == "silu" else gelu_gate
    gated = gate(both, _room(self.down_proj, both))
    return self.down_proj(gated)[: len(both)].view(x.shape)  # type: ignore[no-any-return]


def _room(last: Any, rows: Tensor) -> int:
    """The rows that a layer's product is given for these."""
    return max(len(rows), expect(last, RowPadding).count)
