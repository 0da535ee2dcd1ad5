"""A feature head that drafts for one row on a CPU: the mathematics of ``head_layers.py`` for a guess at a time.

A guess of a small head is a few products and forty small operations, and torch takes longer for those than for the
products. Here nothing has a batch: lengths are known, keys are read as far as there are any, products that read the
same input are one, norms are folded into them, and what is left is done in numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.drafters.head_layers import Block, Head
from outrider.drafters.narrow import Product, product_with

Array = NDArray[np.float32]

_EPS = 1e-5


class Weights:
    """The matrices of a head, and rows of the target's output layer, prepared once for all sessions."""

    def __init__(self, head: Head, output: Tensor) -> None:
        self.size, self.window = head.config.hidden_size, head.config.window
        self.join = _after(head.join.weight, head.state_norm, head.token_norm)
        self.fuse = None if head.fuse is None else _after(head.fuse.weight, *head.layer_norms)
        self.blocks = [
            (_after(torch.cat([b.gate.weight, b.up.weight]), b.norm), product_with(b.down.weight))
            for b in cast(Iterable[Block], head.blocks)
        ]
        self.output = product_with(output)
        self.heads = (0, 0, 0)  # of queries, of keys, numbers in each
        if (attention := head.attention) is not None:
            self.heads = (attention.heads, attention.shared, attention.depth)
            keys = torch.cat([attention.key.weight, attention.value.weight])
            self.queries = _after(torch.cat([attention.query.weight, keys]), attention.norm)
            self.keys = _after(keys, attention.norm)
            self.out = product_with(attention.out.weight)

    def row(self, memory: tuple[Tensor, Tensor] | None) -> OneRow:
        return OneRow(self, memory)


def _after(weight: Tensor, *norms: Any) -> Product:
    """A product with what these norms, side by side, make of their inputs: their weights go into it."""
    return product_with(weight.float() * torch.cat([norm.weight.float() for norm in norms]))


class OneRow:
    """What the head has read of one text. Keys and values stand by position and are written over in time."""

    def __init__(self, weights: Weights, memory: tuple[Tensor, Tensor] | None) -> None:
        """``memory``: where keys and values are kept, [Hk, C, D] each; None for a head without attention."""
        self.weights = weights
        self.made = 0  # the text before this position has been read
        if memory is not None:
            self.keys, self.values = memory[0].numpy(), memory[1].numpy()
            half = memory[0].shape[2] // 2
            speed = 10_000.0 ** (-torch.arange(half) / half)
            angle = torch.arange(memory[0].shape[1])[:, None] * speed
            self.cos, self.sin = angle.cos().numpy(), angle.sin().numpy()  # [C, D/2]

    def read(self, states: Tensor, tokens: Tensor, start: int) -> None:
        """Read the text from position start on: what the target's layers gave there [T, L, size], and the embeddings
        of the tokens that followed [T, size]. The next guess comes after the last of them."""
        given, last = states.float().numpy(), len(tokens) - 1
        x = given[:, -1]
        if self.weights.fuse is not None:
            x = x + _times(self.weights.fuse, _unit(given[:, :-1]).reshape(last + 1, -1))
        x = self._join(x, tokens.float().numpy())
        if self.weights.heads[0] and last:  # those of the newest are made with its query
            self._keep(_times(self.weights.keys, _unit(x[:last])), np.arange(start, start + last))
        self.made = self.place = start + last
        self.oldest = max(0, self.place + 1 - self.weights.window)  # seen by all guesses from here
        self.x = x[last:]  # [1, size]: what it goes on from

    def guess(self, token: Tensor | None) -> Tensor:
        """Logits of the next token [1, N]; after the first guess, behind one whose embedding is token [1, size]."""
        if token is None:
            self.made = self.place + 1
        else:  # its own state stands for the target's
            self.place, self.x = self.place + 1, self._join(self.x, token.float().numpy())
        x = self.x
        if self.weights.heads[0]:
            x = x + self._look(x)
        for joined, down in self.weights.blocks:
            gate, up = np.split(_times(joined, _unit(x)), 2, 1)
            x = x + _times(down, gate / (1 + np.exp(-gate)) * up)
        self.x = x
        return self.weights.output(torch.from_numpy(x))

    def forget_after(self, length: int) -> None:
        """The text has this many tokens: what follows the last is unknown again."""
        self.made = min(self.made, max(0, length - 1))

    def _join(self, x: Array, tokens: Array) -> Array:
        return x + _times(self.weights.join, np.concatenate([_unit(x), _unit(tokens)], 1))

    def _look(self, x: Array) -> Array:
        """Attention from where it is over all before; its own keys are kept first."""
        heads, shared, depth = self.weights.heads
        found = _times(self.weights.queries, _unit(x))
        self._keep(found[:, heads * depth :], np.array([self.place]))
        query = self._turn(found[0, : heads * depth].reshape(heads, depth), self.place).reshape(shared, -1, depth)
        seen = slice(self.oldest, self.place + 1)
        scores = query @ self.keys[:, seen].transpose(0, 2, 1) * np.float32(depth**-0.5)  # [Hk, G, L]
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (chances @ self.values[:, seen]) / chances.sum(-1, keepdims=True)  # [Hk, G, D]
        return _times(self.weights.out, mixed.reshape(1, -1))

    def _keep(self, found: Array, places: NDArray[np.int64]) -> None:
        """Keys and values side by side [T, 2 * Hk * D], at these positions."""
        _, shared, depth = self.weights.heads
        keys, values = found.reshape(len(places), 2, shared, depth).transpose(1, 0, 2, 3)  # [T, Hk, D]
        self.keys[:, places] = self._turn(keys.transpose(1, 0, 2), places)
        self.values[:, places] = values.transpose(1, 0, 2)

    def _turn(self, x: Array, place: Any) -> Array:
        """Rotary positions, as ``head_layers.rotate`` defines them: x [..., D] at places that fit its rows."""
        cos, sin = self.cos[place], self.sin[place]
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _unit(x: Array) -> Array:
    """RMS norm without its weight, over the last dimension."""
    unit: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(_EPS))
    return unit


def _times(product: Product, x: Array) -> Array:
    found: Array = product(torch.from_numpy(x)).numpy()
    return found
