"""The layers of a trained head as torch modules: training and the torch backend run the same code."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from outrider.core.embedding_table import EmbeddingTable
from outrider.drafters.head.config import HeadConfig, Shape2D

KeysValues = tuple[Tensor, Tensor]
"""Keys and values [B, Hk, C, D] each, by position."""


def _linear(shape: Shape2D) -> nn.Linear:
    outputs, inputs = shape
    return nn.Linear(inputs, outputs, bias=False)


def _norm(config: HeadConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=config.norm_eps)


class Block(nn.Module):
    """A gated feed-forward layer with a residual connection."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = _norm(config)
        self.gate, self.up, self.down = (_linear(config.block[name]) for name in ("gate", "up", "down"))
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Memory:
    """Keys and values a guess attends to: those of the text, and those of the guesses before it."""

    def __init__(self, keys: Tensor, values: Tensor, visible: Tensor | None) -> None:
        self.keys, self.values = keys, values  # [B, Hk, C, D]
        self.visible = visible  # [B or 1, 1, 1, T, C] bool; None: the kernel masks by position
        self.own: list[KeysValues] = []  # [B, Hk, T, D] each: of the guess after each of T positions

    def branch(self, parents: Tensor, room: int) -> None:
        """Go on behind these of the T guesses [K], each by itself; ``room``: further guesses that there will be."""
        self.own = [(keys.index_select(2, parents), values.index_select(2, parents)) for keys, values in self.own]

    def look(self, query: Tensor) -> Tensor:
        """Attention: queries [B, H, T, D] -> [B, T, H * D]; heads in groups share keys."""
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


class CachedAttention(nn.Module):
    """Attention whose keys come from the layer's input alone, so that they are made once per token.

    Subclasses write ``remember``.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window  # tokens back that it sees

    def remember(self, x: Tensor, positions: Tensor) -> KeysValues:
        """Inputs [B, T, size] at positions [B or 1, T] -> keys and values [B, Hk, T, D]."""
        raise NotImplementedError

    def store(self, x: Tensor, positions: Tensor, cache: KeysValues, rows: Tensor | None = None) -> None:
        """Keep keys and values of inputs [R, T, size] at positions [R or 1, T] in ``rows`` [R] of the cache, or all."""
        rows = torch.arange(x.shape[0], device=x.device) if rows is None else rows
        for buffer, made in zip(cache, self.remember(x, positions), strict=True):
            buffer[rows[:, None], :, positions] = made.transpose(1, 2)

    def memory(self, cache: KeysValues, newest: Tensor, slots: Tensor) -> Memory:
        """What guesses behind positions ``newest`` [B, 1] attend to; ``slots`` [C] are all positions of the cache."""
        visible = (slots <= newest) & (slots > newest - self.window)
        return Memory(*cache, visible[:, None, None, None])

    def note(self, x: Tensor, positions: Tensor, memory: Memory) -> None:
        """Further guesses attend to a guess that was read as x."""
        memory.own.append(self.remember(x, positions))


class Attention(CachedAttention):
    """Attention with rotary positions."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config.window)
        self.config = config
        self.norm = _norm(config)
        shapes = config.attention
        self.query, self.key, self.value, self.out = (_linear(shapes[n]) for n in ("query", "key", "value", "out"))
        nn.init.zeros_(self.out.weight)

    def remember(self, x: Tensor, positions: Tensor) -> KeysValues:
        y, shared = self.norm(x), self.config.heads[1]
        return self._rotate(self._split(self.key(y), shared), positions), self._split(self.value(y), shared)

    def forward(self, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        query = self._rotate(self._split(self.query(self.norm(x)), self.config.heads[0]), positions)
        return x + self.out(memory.look(query))  # type: ignore[no-any-return]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.reshape(*x.shape[:2], heads, self.config.head_size).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return turned(x, positions, rotary_speeds(self.config, x.device))


def turned(x: Tensor, positions: Tensor, speeds: Tensor) -> Tensor:
    """Rotary positions: x [B, H, T, D] turned by its positions [B or 1, T], with ``speeds`` [D / 2]."""
    angle = positions[:, None, :, None].float() * speeds  # [B, 1, T, D/2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotary_speeds(config: HeadConfig, device: torch.device | None = None) -> Tensor:
    """[D / 2] float32: the angle by which each pair of numbers turns from one position to the next."""
    half = config.head_size // 2
    return config.rotary_base ** (-torch.arange(half, device=device, dtype=torch.float32) / half)


class Corrector(nn.Module):
    """Tells the guesses of a block head, made side by side, which tokens were guessed before them.

    A small recurrent state z [..., R] goes from guess to guess, and the state behind a guess is shifted by it. The
    shift has as few dimensions as z, so with the output layer before it it costs little more than z itself.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.norm, self.token_norm = _norm(config), _norm(config)
        shapes = config.corrector
        self.state, self.token, self.past, self.out = (_linear(shapes[n]) for n in ("state", "token", "past", "out"))
        nn.init.zeros_(self.out.weight)
        self.rank = config.rank

    def begin(self, state: Tensor) -> Tensor:
        """z before the first guess, for states [..., size]."""
        return state.new_zeros((*state.shape[:-1], self.rank))

    def forward(self, state: Tensor, token: Tensor, z: Tensor) -> Tensor:
        """z of a guess whose state is [..., size], behind a token with this embedding [..., size] and the last z."""
        found = self.state(self.norm(state)) + self.token(self.token_norm(token)) + self.past(z)
        return nn.functional.silu(found)


class Head(nn.Module):
    """From the target's states behind the last token, and that token, to the states behind the next ones."""

    block_type: type[Block] = Block
    attention_type: type[Attention] = Attention

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.state_norm, self.token_norm = _norm(config), _norm(config)
        self.join = _linear(config.join)
        self.blocks = nn.ModuleList(self.block_type(config) for _ in range(config.blocks))
        self.layer_norms = nn.ModuleList(_norm(config) for _ in range(config.lower_layers))
        self.fuse = None if config.fuse is None else _linear(config.fuse)
        self.attention = self.attention_type(config) if config.attends else None
        self.masks = nn.Parameter(torch.zeros(config.masks, config.hidden_size)) if config.parallel else None
        self.corrector = Corrector(config) if config.parallel else None

    @property
    def block_list(self) -> list[Block]:
        """``blocks`` with their type, which a ModuleList does not tell."""
        return cast(list[Block], list(self.blocks))

    def seen(self, states: Tensor) -> Tensor:
        """Outputs of the target's layers [..., L, size], the last layer's last -> one state [..., size]."""
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

    @property
    def guesses(self) -> int:
        """Block: that one run of the layers makes."""
        return self.config.masks + 1

    def side_by_side(
        self, states: Tensor, embedding: EmbeddingTable, tokens: Tensor, positions: Tensor, memory: Memory | None
    ) -> tuple[Tensor, Tensor]:
        """Block: states of all guesses [B, G, size], and the corrector's z [B, R], behind tokens [B].

        ``states`` [B, L, size] are those of the target behind the token before.
        """
        assert self.corrector is not None
        x = self.think(self.spread(self.seen(states), embedding[tokens]), positions, memory)
        return x, self.corrector.begin(x[:, 0])

    def follow(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor, z: Tensor) -> Tensor:
        """Block: z of a guess whose state is [B, size], behind tokens [B]."""
        assert self.corrector is not None
        return self.corrector(state, embedding[tokens], z)  # type: ignore[no-any-return]

    def corrected(self, state: Tensor, z: Tensor) -> Tensor:
        """Block: the state [B, size] that the output layer reads."""
        assert self.corrector is not None
        return state + self.corrector.out(z)  # type: ignore[no-any-return]

    def spread(self, state: Tensor, token: Tensor) -> Tensor:
        """Block: a state and the next token's embedding [..., size] -> inputs of all guesses [..., masks + 1, size]."""
        assert self.masks is not None
        masks = self.masks.to(state.dtype).expand(*state.shape[:-1], *self.masks.shape)
        return self.read(
            state[..., None, :].expand(*state.shape[:-1], masks.shape[-2] + 1, -1),
            torch.cat([token[..., None, :], masks], -2),
        )

    def fan(self, state: Tensor, token: Tensor) -> Tensor:
        """Blockwise: the states behind the next k tokens [..., k, size]."""
        x = self.read(state, token)
        return torch.stack([block(x) for block in self.blocks], -2)
