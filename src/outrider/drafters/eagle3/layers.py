"""The layers of an EAGLE-3 head as torch modules, under the names that its checkpoints have."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from outrider.core.embedding_table import EmbeddingTable
from outrider.drafters.eagle3.config import ROTATIONS, Eagle3Config
from outrider.drafters.head.layers import CachedAttention, KeysValues, Memory, turned

_ALL = 1 << 30
"""Tokens back that attention without a window sees."""


def scaled_speeds(config: Eagle3Config, device: torch.device) -> Tensor:
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


class Eagle3Attention(nn.Module):
    """Queries, keys and values of inputs of twice the size: a token's embedding and a state, each normed."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        (queries, keys), size, bias = config.heads, config.head_size, config.attention_bias
        self.q_proj = nn.Linear(2 * config.hidden_size, queries * size, bias=bias)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys * size, bias=bias)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys * size, bias=bias)
        self.o_proj = nn.Linear(queries * size, config.hidden_size, bias=bias)
        normed = config.decoder == "qwen3"
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


class Eagle3Mlp(nn.Module):
    """A Llama's gated feed-forward layer."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.inner_size, config.mlp_bias
        self.gate_proj, self.up_proj = (nn.Linear(size, inner, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(inner, size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Eagle3Layer(CachedAttention):
    """The decoder layer: what it is given holds an embedding and a state, side by side; it gives a state."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(_ALL if config.window is None else config.window)
        self.config = config
        size, eps = config.hidden_size, config.norm_eps
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            nn.RMSNorm(size, eps=eps) for _ in range(3)
        )
        self.self_attn, self.mlp = Eagle3Attention(config), Eagle3Mlp(config)

    def remember(self, x: Tensor, positions: Tensor) -> KeysValues:
        return self.self_attn.keys_values(self._normed(x), positions)

    def _normed(self, x: Tensor) -> Tensor:
        """What attention reads: both halves of x [..., 2 * size], each normed."""
        token, state = x.chunk(2, -1)
        return torch.cat([self.input_layernorm(token), self.hidden_norm(state)], -1)

    def forward(self, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        normed = self._normed(x)
        stream = (normed if self.config.norm_before_residual else x).chunk(2, -1)[1]
        stream = stream + self.self_attn(normed, positions, memory)
        return stream + self.mlp(self.post_attention_layernorm(stream))  # type: ignore[no-any-return]


class Eagle3Head(nn.Module):
    """From the target's states behind the last token, and that token, to the logits of the next ones."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        size, wide, eps = config.hidden_size, config.reads * config.target_size, config.norm_eps
        self.input_norm = nn.RMSNorm(wide, eps=eps) if config.norm_before_fc else None
        norms = config.reads if config.fc_norm else 0
        self.fc_norm = nn.ModuleList(nn.RMSNorm(config.target_size, eps=eps) for _ in range(norms))
        self.fc = nn.Linear(wide, size, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.norm = nn.RMSNorm(size, eps=eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.own_embedding: Tensor | None = None  # [V, size]; None: the target's
        # A plain attribute: what is no parameter is neither copied nor widened with the head.

    @property
    def attention(self) -> Eagle3Layer:
        """The one layer, with its keys and values."""
        return cast(Eagle3Layer, self.layers[0])

    def seen(self, states: Tensor) -> Tensor:
        """States behind the layers that it reads [..., L, size of the target] -> one state [..., size]."""
        if self.fc_norm:
            states = torch.stack([norm(states[..., i, :]) for i, norm in enumerate(self.fc_norm)], -2)
        wide = states.flatten(-2)
        return self.fc(wide if self.input_norm is None else self.input_norm(wide))  # type: ignore[no-any-return]

    def read_token(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor) -> Tensor:
        """States [B, T, size] and the tokens [B, T] that came after them -> [B, T, 2 * size]."""
        table = embedding if self.own_embedding is None else self.own_embedding
        return torch.cat([table[tokens].to(state.dtype), state], -1)

    def think(self, x: Tensor, positions: Tensor, memory: Memory | None) -> Tensor:
        """From what was read [B, T, 2 * size] to the state that the next guess reads [B, T, size]."""
        assert memory is not None
        state = self.attention(x, positions, memory)
        return self.norm(state) if self.config.norm_output else state  # type: ignore[no-any-return]

    def logits(self, state: Tensor) -> Tensor:
        """States [..., size] -> logits [..., N]."""
        return self.lm_head(state if self.config.norm_output else self.norm(state))  # type: ignore[no-any-return]
