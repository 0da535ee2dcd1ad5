"""What a run of a T5-like encoder or decoder reads and writes, as compiled code takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from outrider.kernels.numba.products import Half
from outrider.kernels.numba.rows import Table

QKV, OUT, CROSS_Q, CROSS_OUT, INNER, OUTER = range(6)
"""Products of a layer, in the order in which they run: queries, keys and values; attention's output; the same two of
cross-attention; into and out of the feed-forward layer."""

PIECES, BESIDE = 6, 4
"""Pieces of work of a layer, and those beside the layers: embedding, last norm, output, and choice of a guess."""

RELU, GELU, SILU = range(3)
"""Activations of the feed-forward layer; GELU in its approximation by tanh."""


class T5Stack(NamedTuple):
    """The weights of an encoder or a decoder: matrices as addresses of panels, vectors as arrays; L layers."""

    layers: int
    hidden: int
    heads: int
    depth: int
    padded: int  # columns of a head: depth, up to whole panels
    inner: int
    gated: bool
    activation: int
    crosses: bool  # a decoder: its layers read a source as well
    epsilon: float
    embedding: Table
    places: np.ndarray[Any, Any]  # [L, 6]: addresses of the products' matrices
    norms: np.ndarray[Any, Any]  # [L, 3, hidden]: before attention, cross-attention and feed-forward
    last_norm: np.ndarray[Any, Any]  # [hidden]
    output: int  # address of the output matrix
    half: Half  # what weights are and products are computed in
    powers: np.ndarray[Any, Any]  # [L, 6, 2]: what their inputs are scaled by (``float16_products.py``)
    last_powers: np.ndarray[Any, Any]  # [2]: those of the output matrix


class T5Memory(NamedTuple):
    """Keys and values in buffers [rows, heads, capacity, depth], by layer."""

    rows: int
    capacity: int
    keys: np.ndarray[Any, Any]  # [L]: addresses
    values: np.ndarray[Any, Any]


class T5Run(NamedTuple):
    """Inputs, outputs and scratch buffers of a run of N tokens in R rows."""

    tokens: np.ndarray[Any, Any]  # [N]
    firsts: np.ndarray[Any, Any]  # [R + 1]: where the tokens of each row begin among all, and the end
    rows: np.ndarray[Any, Any]  # [R]: which row of the buffers each is
    at: np.ndarray[Any, Any]  # [N]: positions
    seen: np.ndarray[Any, Any]  # [N]: keys that a token looks at, the first ones
    bias: np.ndarray[Any, Any]  # [heads, 2 * reach + 1]: by how far a key is behind its query, from -reach on
    own: T5Memory
    cross: T5Memory
    sources: np.ndarray[Any, Any]  # [rows of the buffers]: tokens of their sources
    x: np.ndarray[Any, Any]  # [N, hidden]: what layers read and add to
    found: np.ndarray[Any, Any]  # [N, hidden]: the result
    logits: np.ndarray[Any, Any]  # [N, V]: the other result; no rows where it is not wanted
    kept: np.ndarray[Any, Any]  # [L]: which of the states a layer's input is, or -1
    states: np.ndarray[Any, Any]  # [S, N, hidden]
    mixed: np.ndarray[Any, Any]  # [N, heads * depth]: between two pieces of work
    between: np.ndarray[Any, Any]  # [N, inner]
    guesses: np.ndarray[Any, Any]  # [G, R]: the third result, the likeliest tokens behind each row, one after another
    choosable: int  # tokens that may be guessed, the first ones
    counters: np.ndarray[Any, Any]  # zeros, STRIDE bytes for every piece of work
    threads: int
