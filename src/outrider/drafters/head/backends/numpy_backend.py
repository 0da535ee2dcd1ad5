"""A feature head for one row on a CPU, in numpy and a few products: used where the compiled one is not.

A guess of a small head is a few products and forty small operations, and torch takes longer for those than for the
products. Here nothing has a batch: keys are read as far as there are any, products that read the same input are one,
norms are folded into them, and what is left is done in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.protocols import Shape
from outrider.drafters.head.backend import HeadBackend, OutputRows
from outrider.drafters.head.backends.cpu_products import Product, product_with
from outrider.drafters.head.backends.one_row import Array, OneRowBackend
from outrider.drafters.head.layers import Head


class NumpyWeights:
    """Products with the matrices of a head, and with its rows of the output layer."""

    def __init__(self, head: Head, output: OutputRows) -> None:
        self.config, self.output_rows = head.config, output
        self.join = _after(head.join.weight, head.state_norm, head.token_norm)
        self.fuse = None if head.fuse is None else _after(head.fuse.weight, *head.layer_norms)
        self.blocks = [
            (_after(torch.cat([b.gate.weight, b.up.weight]), b.norm), product_with(b.down.weight))
            for b in head.block_list
        ]
        self.output = product_with(output[:])
        if (attention := head.attention) is not None:
            keys = torch.cat([attention.key.weight, attention.value.weight])
            self.queries = _after(torch.cat([attention.query.weight, keys]), attention.norm)
            self.keys = _after(keys, attention.norm)
            self.out = product_with(attention.out.weight)

    def start(self, rows: int, shape: Shape, several: Callable[[], HeadBackend]) -> NumpyBackend:
        return NumpyBackend(self, shape.capacity, several)


def _after(weight: Tensor, *norms: Any) -> Product:
    """A product with what these norms, side by side, make of their inputs: their weights go into it."""
    return product_with(weight.float() * torch.cat([norm.weight.float() for norm in norms]))


class NumpyBackend(OneRowBackend):
    """Runs a feature head for one row with numpy. Between guesses a draft is a state [1, size] and its position."""

    name = "numpy"

    def __init__(self, weights: NumpyWeights, capacity: int, several: Callable[[], HeadBackend]) -> None:
        super().__init__(weights.config, weights.output_rows, capacity, several)
        self.weights = weights

    def read(self, states: Tensor, tokens: Tensor, start: int) -> None:
        given, last = states.float().numpy(), len(tokens) - 1
        x = given[:, -1]
        if self.weights.fuse is not None:
            x = x + _times(self.weights.fuse, self._unit(given[:, :-1]).reshape(last + 1, -1))
        x = self._join(x, tokens.float().numpy())
        if self.config.attends and last:  # those of the newest are made with its query
            self._keep(_times(self.weights.keys, self._unit(x[:last])), np.arange(start, start + last))
        self._stands_at(start + last)
        self.made = start + last
        self.x = x[last:]  # [1, size]: what it goes on from

    def guess(self, token: Tensor | None) -> Tensor:
        if token is None:
            self.made = self.position + 1
        else:  # its own state stands for the target's
            self.position, self.x = self.position + 1, self._join(self.x, token.float().numpy())
        x = self.x
        if self.config.attends:
            x = x + self._attention(x)
        for joined, down in self.weights.blocks:
            gate, up = np.split(_times(joined, self._unit(x)), 2, 1)
            x = x + _times(down, gate / (1 + np.exp(-gate)) * up)
        self.x = x
        return self.weights.output(torch.from_numpy(x))

    def _join(self, x: Array, tokens: Array) -> Array:
        return x + _times(self.weights.join, np.concatenate([self._unit(x), self._unit(tokens)], 1))

    def _attention(self, x: Array) -> Array:
        """From the newest position over all before that it sees; its own keys are kept first."""
        (heads, shared), size = self.config.heads, self.config.head_size
        found = _times(self.weights.queries, self._unit(x))
        self._keep(found[:, heads * size :], np.array([self.position]))
        query = self._rotate(found[0, : heads * size].reshape(heads, size), self.position).reshape(shared, -1, size)
        seen = slice(self.oldest, self.position + 1)
        scores = query @ self.keys[:, seen].transpose(0, 2, 1) * np.float32(size**-0.5)  # [Hk, G, L]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights @ self.values[:, seen]) / weights.sum(-1, keepdims=True)  # [Hk, G, D]
        return _times(self.weights.out, mixed.reshape(1, -1))

    def _keep(self, found: Array, positions: NDArray[np.int64]) -> None:
        """Keys and values side by side [T, 2 * Hk * D], at these positions."""
        shared, size = self.config.heads[1], self.config.head_size
        keys, values = found.reshape(len(positions), 2, shared, size).transpose(1, 0, 2, 3)  # [T, Hk, D]
        self.keys[:, positions] = self._rotate(keys.transpose(1, 0, 2), positions)
        self.values[:, positions] = values.transpose(1, 0, 2)

    def _rotate(self, x: Array, position: Any) -> Array:
        """Rotary positions, as ``layers.py`` defines them: x [..., D] at positions that fit its rows."""
        cos, sin = self.cos[position], self.sin[position]
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def _unit(self, x: Array) -> Array:
        """RMS norm without its weight, over the last dimension."""
        unit: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.config.norm_eps))
        return unit


def _times(product: Product, x: Array) -> Array:
    found: Array = product(torch.from_numpy(x)).numpy()
    return found
