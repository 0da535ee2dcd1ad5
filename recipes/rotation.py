"""Turns a Llama's hidden states by a random rotation: the same function, and no weight on the grid it was rounded to.

A model that comes as a file of four bits, unpacked, is no model of full weights: four bits find its grid again and seem
to lose nothing. Norms of Llamas commute with rotations once their gains are part of the products behind them, so every
product can be turned, and what is lost by rounding it then is what is lost of weights that were never rounded.
Rotations also spread outliers, so losses are somewhat smaller than those of a model as it was trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def rotate(model: Any, seed: int = 0) -> None:
    """In place; the model's input and output embeddings must be two matrices. Computed in float64."""
    if model.get_input_embeddings().weight is model.get_output_embeddings().weight:
        raise ValueError("the embeddings are tied: a gain can only become part of the output layer")
    body, config = model.model, model.config
    turn = rotation(config.hidden_size, seed)
    _set(body.embed_tokens, body.embed_tokens.weight.double() @ turn)
    for index, layer in enumerate(body.layers):
        attention, mlp = layer.self_attn, layer.mlp
        _read(layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj], turn)
        _read(layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj], turn)
        for product in (attention.o_proj, mlp.down_proj):
            _set(product, turn.T @ product.weight.double())
        _turn_values(attention, config, rotation(config.head_dim, seed + 1 + index))
    _read(body.norm, [model.lm_head], turn)


def rotation(size: int, seed: int) -> Tensor:
    """[size, size] in float64."""
    chance = torch.Generator().manual_seed(seed)
    turn, upper = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=chance))
    return turn * upper.diagonal().sign()


def _read(norm: Any, products: list[Any], turn: Tensor) -> None:
    """Products behind a norm read turned states, and have its gain."""
    for product in products:
        _set(product, product.weight.double() * norm.weight.double() @ turn)
    norm.weight.fill_(1)


def _turn_values(attention: Any, config: Any, turn: Tensor) -> None:
    """What attention adds up are values, and any rotation of a head's can be undone behind it."""
    size = config.head_dim
    values = attention.v_proj.weight.double().view(-1, size, config.hidden_size)
    _set(attention.v_proj, (turn.T @ values).flatten(0, 1))
    output = attention.o_proj.weight.double().view(config.hidden_size, -1, size)
    _set(attention.o_proj, (output @ turn).flatten(1))


def _set(module: Any, weight: Tensor) -> None:
    module.weight.copy_(weight)
