"""The arguments of a compiled head: weights, KV cache, text to read, and scratch buffers; see ``head.py``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class HeadMatrices(NamedTuple):
    """Sizes of a head, its norms, and its matrices at addresses, as ``packed_products.py`` reads them."""

    product: int  # address of ``packed_product``
    size: int
    inner: int
    heads: int  # none: no attention
    shared: int  # heads of keys and values
    depth: int
    padded: int  # columns of a head: depth, up to whole panels
    tokens: int  # it has logits for
    epsilon: float  # of all norms
    fuse: int  # address of the product that joins the target's layers, or 0
    join: int
    attention: np.ndarray[Any, Any]  # [2]: queries+keys+values, head by head, and output
    blocks: np.ndarray[Any, Any]  # [blocks, 2]: gate|up panel by panel, and down
    output: int
    layer_norms: np.ndarray[Any, Any]  # [layers but the last, size]
    norms: np.ndarray[Any, Any]  # [3 + blocks, size]: of states, of tokens, of attention, of blocks


class Drawing(NamedTuple):
    """How tokens are chosen."""

    rate: float  # one over the temperature; at temperature 0 one
    keys: np.ndarray[Any, Any]  # [G] int64: of the noise at every guess; none at temperature 0
    counters: np.ndarray[Any, Any]  # [N] int32: of the tokens, in that noise
    probs: np.ndarray[Any, Any]  # [G, N]: what tokens were drawn from


class Reading(NamedTuple):
    """Text to read first, T positions from ``start`` on, or the last guess and the state it came from."""

    start: int
    states: np.ndarray[Any, Any]  # [T, L, size]: outputs of the target's layers; T may be 0
    tokens: np.ndarray[Any, Any]  # [T, size]: embeddings of the tokens behind them
    seen: np.ndarray[Any, Any]  # [T, size]: scratch
    before: np.ndarray[Any, Any]  # [1, size], with the guess
    guess: np.ndarray[Any, Any]  # [0 or 1, size]: its embedding
    x: np.ndarray[Any, Any]  # [max(T, 1), size]: what was read, and in the last row what the first guess comes from


class KVCache(NamedTuple):
    """Keys and values of one text by position, up to C of them, and the rotary tables."""

    keys: np.ndarray[Any, Any]  # [shared, C, depth]
    values: np.ndarray[Any, Any]
    cos: np.ndarray[Any, Any]  # [C, depth / 2]
    sin: np.ndarray[Any, Any]


class Scratch(NamedTuple):
    """Scratch buffers for a draft of up to G guesses."""

    states: np.ndarray[Any, Any]  # [2, size]: what the last two guesses came from, but for the first
    between: np.ndarray[Any, Any]  # [1, heads * depth * 2 + inner]: queries, attention's output, gated activations
    logits: np.ndarray[Any, Any]  # [1, N]: of the last guess
    best: np.ndarray[Any, Any]  # [G, items, 5]: largest logit, its index, sum of exp; a race's winner, its index
    counters: np.ndarray[Any, Any]  # zeros, STRIDE bytes for every piece of work
