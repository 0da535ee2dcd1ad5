"""Decoder layers of published heads written once more, one place at a time: what the product's are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

import eagle_heads


class PlainLayers:
    """The layers of a checkpoint: ``config`` is its ``transformer_layer_config``, ``weights`` its tensors by name."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor], head_norms: bool) -> None:
        self.config, self.weights, self.head_norms = config, weights, head_norms

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.config["rms_norm_eps"])

    def linear(self, x: Tensor, name: str) -> Tensor:
        return torch.nn.functional.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def heads(self, x: Tensor, layer: int, name: str, position: int) -> Tensor:
        """Queries, keys or values [heads, size] of a vector that stands at this position."""
        at = f"layers.{layer}.self_attn."
        x = self.linear(x, f"{at}{name}_proj").reshape(-1, eagle_heads.HEAD_SIZE)
        if name == "v":
            return x
        if self.head_norms:
            x = self.norm(x, f"{at}{name}_norm")
        half = eagle_heads.HEAD_SIZE // 2
        angles = [position * speed for speed in speeds(self.config.get("rope_parameters", {"rope_theta": 10_000.0}))]
        turn = torch.polar(torch.ones(half), torch.tensor(angles))
        both = torch.complex(x[:, :half].contiguous(), x[:, half:].contiguous()) * turn
        return torch.cat([both.real, both.imag], -1)

    def attend(self, layer: int, query: Tensor, seen: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """What a query [heads, size] finds among keys and values [keys, size] of the places it sees."""
        groups = eagle_heads.HEADS // eagle_heads.KEYS
        keys, values = (torch.stack(part).repeat_interleave(groups, 1) for part in zip(*seen, strict=True))
        chance = (torch.einsum("hd,thd->ht", query, keys) * eagle_heads.HEAD_SIZE**-0.5).softmax(-1)
        return self.linear(torch.einsum("ht,thd->hd", chance, values).flatten(), f"layers.{layer}.self_attn.o_proj")

    def mlp(self, stream: Tensor, layer: int) -> Tensor:
        at = f"layers.{layer}."
        y = self.norm(stream, f"{at}post_attention_layernorm")
        gated = silu(self.linear(y, f"{at}mlp.gate_proj")) * self.linear(y, f"{at}mlp.up_proj")
        return stream + self.linear(gated, f"{at}mlp.down_proj")


def speeds(rope: dict[str, Any]) -> list[float]:
    """By the rule of Llama 3.1, in Python: long waves are stretched, short ones are not."""
    found = [rope["rope_theta"] ** (-2 * i / eagle_heads.HEAD_SIZE) for i in range(eagle_heads.HEAD_SIZE // 2)]
    if rope.get("rope_type", "default") == "default":
        return found
    scaled = []
    for speed in found:
        turns = rope["original_max_position_embeddings"] * speed / 6.283185307179586
        if turns < rope["low_freq_factor"]:
            scaled.append(speed / rope["factor"])
        elif turns > rope["high_freq_factor"]:
            scaled.append(speed)
        else:
            share = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            scaled.append((1 - share) * speed / rope["factor"] + share * speed)
    return scaled
