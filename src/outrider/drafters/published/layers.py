"""Decoder layers of published heads as torch modules, under the names that checkpoints have, and stacks of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from outrider.drafters.head.layers import CachedAttention, KeysValues, Memory, turned
from outrider.drafters.published.decoder_config import ROTATIONS, DecoderConfig

_ALL = 1 << 30
"""Tokens back that attention without a window sees."""


def scaled_speeds(config: DecoderConfig, device: torch.device) -> Tensor:
    """[D / 2] float32: the angle by which each pair of numbers turns from one position to the next."""
    size, scaling = config.head_size, config.rotary
    steps = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
    speeds = torch.reciprocal(config.rotary_base**steps)
    if scaling["rope_type"] == "default":
        return speeds
    slowed = speeds / float(scaling["factor"])
    if scaling["rope_type"] == "linear":
        return slowed
    # Slow turns are slowed down by the factor, fast ones stay, and those between are in between.
    low, high, length = (float(scaling[name]) for name in ROTATIONS["llama3"][1:])
    turns = speeds * (length / (2 * math.pi))
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(slowed, speeds, share)


class DecoderAttention(nn.Module):
    """Queries, keys and values of inputs of ``inputs`` numbers each."""

    def __init__(self, config: DecoderConfig, inputs: int) -> None:
        super().__init__()
        self.config = config
        (queries, keys), size, bias = config.heads, config.head_size, config.attention_bias
        self.q_proj = nn.Linear(inputs, queries * size, bias=bias)
        self.k_proj = nn.Linear(inputs, keys * size, bias=bias)
        self.v_proj = nn.Linear(inputs, keys * size, bias=bias)
        self.o_proj = nn.Linear(queries * size, config.hidden_size, bias=bias)
        normed = config.family == "qwen3"
        self.q_norm, self.k_norm = (nn.RMSNorm(size, eps=config.norm_eps) if normed else None for _ in range(2))

    def keys_values(self, x: Tensor, positions: Tensor) -> KeysValues:
        return self._turned(self.k_proj(x), self.k_norm, positions), self._split(self.v_proj(x))

    def forward(self, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        found = memory.look(self._turned(self.q_proj(x), self.q_norm, positions))
        return self.o_proj(found)  # type: ignore[no-any-return]

    def _turned(self, x: Tensor, norm: nn.Module | None, positions: Tensor) -> Tensor:
        x = self._split(x)
        return turned(x if norm is None else norm(x), positions, scaled_speeds(self.config, x.device))

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, H, T, D]."""
        return x.reshape(*x.shape[:2], -1, self.config.head_size).transpose(1, 2)


class DecoderMlp(nn.Module):
    """A Llama's gated feed-forward layer."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.inner_size, config.mlp_bias
        self.gate_proj, self.up_proj = (nn.Linear(size, inner, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(inner, size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class DecoderLayer(CachedAttention):
    """A decoder layer: attention, then the feed-forward layer, each on the norm of what it is added to."""

    def __init__(self, config: DecoderConfig, place: int, inputs: int | None = None) -> None:
        window = config.windows[place]
        super().__init__(_ALL if window is None else window)
        self.slides = window is not None
        self.input_layernorm, self.post_attention_layernorm = (
            nn.RMSNorm(config.hidden_size, eps=config.norm_eps) for _ in range(2)
        )
        self.self_attn, self.mlp = DecoderAttention(config, inputs or config.hidden_size), DecoderMlp(config)

    def normed(self, x: Tensor) -> Tensor:
        """What attention reads."""
        return self.input_layernorm(x)  # type: ignore[no-any-return]

    def residual(self, x: Tensor, normed: Tensor) -> Tensor:
        """What the layer's results are added to."""
        return x

    def remember(self, x: Tensor, positions: Tensor) -> KeysValues:
        return self.own_keys(x, positions)

    def own_keys(self, x: Tensor, positions: Tensor) -> KeysValues:
        """Keys and values of the layer's inputs."""
        return self.self_attn.keys_values(self.normed(x), positions)

    def forward(self, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        normed = self.normed(x)
        stream = self.residual(x, normed)
        stream = stream + self.self_attn(normed, positions, memory)
        return stream + self.mlp(self.post_attention_layernorm(stream))  # type: ignore[no-any-return]


class StackMemory(Memory):
    """What guesses attend to in every layer of a stack. ``parts`` are the layers' own."""

    def __init__(self, parts: Sequence[Memory]) -> None:
        super().__init__(parts[0].keys, parts[0].values, None)
        self.parts = parts
        self.noted = False  # what is read next attends to itself, too: its keys are in no cache

    def branch(self, parents: Tensor, room: int) -> None:
        for part in self.parts:
            part.branch(parents, room)


class LayerStack:
    """Decoder layers above one another. Their KV cache has the heads of all layers side by side."""

    def __init__(self, layers: Sequence[DecoderLayer], heads: int) -> None:
        self.layers, self.heads = layers, heads  # heads for keys of a layer

    def store(self, x: Tensor, positions: Tensor, cache: KeysValues, rows: Tensor | None = None) -> None:
        """Keep keys and values of inputs [R, T, ...] at positions [R or 1, T] in ``rows`` [R] of the cache, or all.

        A layer above another reads what that one makes of the text up to there, so positions must be given in order.
        """
        for place, layer in enumerate(self.layers):
            part = self._part(cache, place)
            layer.store(x, positions, part, rows)
            if place + 1 < len(self.layers):
                own = part if rows is None else (part[0][rows], part[1][rows])
                slots = torch.arange(own[0].shape[2], device=x.device)
                ahead = slots - positions[..., None]  # [R or 1, T, C]
                visible = (ahead <= 0) & (ahead > -layer.window)
                x = layer(x, positions, Memory(*own, visible[:, None, None]))

    def memory(self, cache: KeysValues, newest: Tensor, slots: Tensor) -> StackMemory:
        """What guesses behind positions ``newest`` [B, 1] attend to; ``slots`` [C] are all positions of the cache."""
        parts = [layer.memory(self._part(cache, i), newest, slots) for i, layer in enumerate(self.layers)]
        return StackMemory(parts)

    def note(self, x: Tensor, positions: Tensor, memory: Memory) -> None:
        """Further guesses attend to a guess that was read as x: its keys are made as the layers run."""
        assert isinstance(memory, StackMemory)
        memory.noted = True

    def think(self, x: Tensor, positions: Tensor, memory: Memory | None) -> Tensor:
        """Through all layers [B, T, ...] -> [B, T, size]."""
        assert isinstance(memory, StackMemory)
        for layer, part in zip(self.layers, memory.parts, strict=True):
            if memory.noted:
                part.own.append(layer.remember(x, positions))
            x = layer(x, positions, part)
        memory.noted = False
        return x

    def _part(self, cache: KeysValues, place: int) -> KeysValues:
        """A layer's own keys and values."""
        own = slice(place * self.heads, (place + 1) * self.heads)
        return cache[0][:, own], cache[1][:, own]


class BlockMemory(Memory):
    """What the places of a block attend to: the text, and one another."""

    def __init__(self, text: Memory, own: KeysValues, visible: Tensor) -> None:
        super().__init__(text.keys, text.values, visible)  # [B, 1, 1, T, C + T]
        self.block = own  # [B, Hk, T, D] each

    def look(self, query: Tensor) -> Tensor:
        rows, heads, places, size = query.shape
        shared = self.keys.shape[1]
        q = query.reshape(rows, shared, -1, size)  # queries that share keys as rows of one product
        scores = torch.cat([q @ self.keys.transpose(-1, -2), q @ self.block[0].transpose(-1, -2)], -1)
        scores = scores.reshape(rows, shared, heads // shared, places, -1).float() * size**-0.5
        assert self.visible is not None
        scores = scores.masked_fill(~self.visible, torch.finfo(torch.float32).min)
        weights = scores.softmax(-1).to(query.dtype).flatten(2, 3)  # [B, Hk, G * T, C + T]
        text = self.keys.shape[2]
        found = weights[..., :text] @ self.values + weights[..., text:] @ self.block[1]
        found = found.reshape(rows, heads, places, size).transpose(1, 2)
        return found.reshape(rows, places, heads * size)  # type: ignore[no-any-return]
