"""The layers of trained heads, apart from how they draft: training and drafting run the same code."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.core.embedding_table import EmbeddingTable


@dataclass(frozen=True)
class HeadConfig:
    """The shape of a head, and the target it was trained for."""

    kind: str  # feature or blockwise
    hidden_size: int
    inner_size: int
    blocks: int  # feature: stacked blocks per guess; blockwise: k, the guesses per run
    layers: tuple[int, ...] = (-1,)  # feature: of the target, whose outputs it reads; the last is -1
    heads: tuple[int, int] = (0, 0)  # feature: attention heads for queries and for keys; none: no attention
    window: int = 512  # feature: tokens back that attention sees
    fingerprint: str = ""  # of the target, see training/teacher.py
    gamma: int = 4  # guesses it is best asked for


class Block(nn.Module):
    """A gated feed-forward layer with a residual connection."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size, eps=1e-5)
        self.gate = nn.Linear(size, inner, bias=False)
        self.up = nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Memory:
    """Keys and values a guess may look at: those of the text, shared, and those of its own guesses before."""

    def __init__(self, keys: Tensor, values: Tensor, visible: Tensor | None) -> None:
        self.keys, self.values = keys, values  # [B, Hk, C, D]
        self.visible = visible  # [B or 1, 1, 1, T, C] bool; a fused head knows it by position
        self.own: list[tuple[Tensor, Tensor]] = []  # [B, Hk, T, D] each: of the guess after each of T places
        self.guesses = 0  # that stand in ``keys`` and ``values`` instead, behind the text: see head_fused.py

    def look(self, query: Tensor) -> Tensor:
        """Queries [B, H, T, D] -> what they find [B, T, H * D]; heads in groups share keys."""
        rows, heads, places, size = query.shape
        shared = self.keys.shape[1]
        groups = heads // shared
        q = query.reshape(rows, shared, groups, places, size)
        # Queries that share keys as rows of one product: broadcasting would copy the keys.
        scores = q.flatten(2, 3) @ self.keys.transpose(-1, -2)  # [B, Hk, G * T, C]
        scores = scores.reshape(rows, shared, groups, places, -1).float()
        assert self.visible is not None
        scores = scores.masked_fill(~self.visible, torch.finfo(torch.float32).min)
        mine = [(q * k[:, :, None]).sum(-1, keepdim=True).float() for k, _ in self.own]
        weights = (torch.cat([scores, *mine], -1) * size**-0.5).softmax(-1).to(query.dtype)
        text = self.keys.shape[2]
        found = (weights[..., :text].flatten(2, 3) @ self.values).reshape(q.shape)
        for i, (_, v) in enumerate(self.own):
            found = found + weights[..., text + i, None] * v[:, :, None]
        found = found.reshape(rows, heads, places, size).transpose(1, 2)
        return found.reshape(rows, places, heads * size)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention with rotary positions. Keys come from the layer's input alone, so they are made once per token."""

    def __init__(self, size: int, heads: int, shared: int) -> None:
        super().__init__()
        self.heads, self.shared, self.depth = heads, shared, size // heads
        self.norm = nn.RMSNorm(size, eps=1e-5)
        self.query = nn.Linear(size, heads * self.depth, bias=False)
        self.key = nn.Linear(size, shared * self.depth, bias=False)
        self.value = nn.Linear(size, shared * self.depth, bias=False)
        self.out = nn.Linear(heads * self.depth, size, bias=False)
        nn.init.zeros_(self.out.weight)

    def remember(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [B, T, size] at positions [B or 1, T] -> keys and values [B, Hk, T, D]."""
        y = self.norm(x)
        return rotate(self._split(self.key(y), self.shared), positions), self._split(self.value(y), self.shared)

    def store(
        self, x: Tensor, positions: Tensor, buffers: tuple[Tensor, Tensor], rows: Tensor | None = None
    ) -> Tensor | None:
        """Keep keys and values of inputs [R, T, size] at positions [R or 1, T] of ``rows`` [R] of the buffers, or all.

        A fused head gives the queries of these inputs, too.
        """
        rows = torch.arange(x.shape[0], device=x.device) if rows is None else rows
        for buffer, made in zip(buffers, self.remember(x, positions), strict=True):
            buffer[rows[:, None], :, positions] = made.transpose(1, 2)
        return None

    def note(self, x: Tensor, positions: Tensor, memory: Memory) -> None:
        """A guess that was read as x can be looked back at."""
        memory.own.append(self.remember(x, positions))

    def forward(self, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        query = rotate(self._split(self.query(self.norm(x)), self.heads), positions)
        return x + self.out(memory.look(query))  # type: ignore[no-any-return]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.reshape(*x.shape[:2], heads, self.depth).transpose(1, 2)


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotary positions: x [B, H, T, D] turned by its positions [B or 1, T]."""
    half = x.shape[-1] // 2
    speed = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].float() * speed  # [B, 1, T, D/2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Head(nn.Module):
    """From what the target saw behind the last token, and that token, to the states behind the next ones."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.state_norm = nn.RMSNorm(size, eps=1e-5)
        self.token_norm = nn.RMSNorm(size, eps=1e-5)
        self.join = nn.Linear(2 * size, size, bias=False)
        self.blocks = nn.ModuleList(Block(size, config.inner_size) for _ in range(config.blocks))
        deeper = len(config.layers) - 1
        self.layer_norms = nn.ModuleList(nn.RMSNorm(size, eps=1e-5) for _ in range(deeper))
        self.fuse = nn.Linear(deeper * size, size, bias=False) if deeper else None
        self.attention = Attention(size, *config.heads) if config.heads[0] else None

    def seen(self, states: Tensor) -> Tensor:
        """What the target's layers gave [..., L, size], the last of them last -> one state [..., size]."""
        last = states[..., -1, :]
        if self.fuse is None:
            return last
        others = [norm(states[..., i, :]) for i, norm in enumerate(self.layer_norms)]
        return last + self.fuse(torch.cat(others, -1))  # type: ignore[no-any-return]

    def read(self, state: Tensor, token: Tensor) -> Tensor:
        """Join a state [..., size] with the embedding of the token that came after it."""
        joined = torch.cat([self.state_norm(state), self.token_norm(token)], -1)
        return state + self.join(joined)  # type: ignore[no-any-return]

    def read_token(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor) -> Tensor:
        """Join states [B, T, size] with tokens [B, T] that came after them."""
        return self.read(state, embedding[tokens])

    def think(self, x: Tensor, positions: Tensor, memory: Memory | None) -> Tensor:
        """Feature: from what was read [B, T, size] to the state behind the next token."""
        if self.attention is not None and memory is not None:
            x = self.attention(x, positions, memory)
        for block in self.blocks:
            x = block(x)
        return x

    def fan(self, state: Tensor, token: Tensor) -> Tensor:
        """Blockwise: the states behind the next k tokens [..., k, size]."""
        x = self.read(state, token)
        return torch.stack([block(x) for block in self.blocks], -2)
