"""What the compiled layers of a Llama-like model read and write."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from outrider.kernels.numba import amx_products
from outrider.kernels.numba.attention_room import Cut

PROJECT, TURN, MIX, OUT, OUT_NORM, GATE, DOWN, DOWN_NORM = range(8)
PIECES = 8
"""Pieces of work of a layer. Most layers have five of them: see ``layers``."""

ROWS = 4 * amx_products.ROWS if amx_products.AVAILABLE else 36
"""Rows of a run that are multiplied with an item's weights at a time: their inputs stay in a core's own cache.

A Neoverse-N1 multiplied 128 rows of 1,536 inputs clearly faster in blocks of 36 than all together. By AMX they are
multiplied in whole blocks of sixteen.
"""


class LlamaWeights(NamedTuple):
    """The weights of a model: matrices as addresses of panels, vectors as arrays; L layers."""

    layers: int
    hidden: int
    heads: int
    shared: int  # heads of keys and values
    depth: int
    padded: int  # columns of a head: depth, up to whole panels
    inner: int
    epsilon: float
    scale: float  # of queries times keys
    places: np.ndarray[Any, Any]  # [L, 4]: addresses of queries+keys+values, output, gate|up, down
    biases: np.ndarray[Any, Any]  # [L, 4]: addresses of their biases, or 0
    norms: np.ndarray[Any, Any]  # [n L + 1, hidden]: those of all layers, and the last
    norm_rows: np.ndarray[Any, Any]  # [L, 4]: which of them stand before and after attention and MLP, or -1
    query_norms: np.ndarray[Any, Any]  # [L, depth or heads * depth]; no rows where there are none
    key_norms: np.ndarray[Any, Any]  # [L, depth or shared * depth]
    by_width: bool  # whether these are over all heads together
    kinds: np.ndarray[Any, Any]  # [L]: which rotary positions a layer has
    residual: float  # what is multiplied with what attention and MLP add to x
    attention_cap: float  # scores are cap * tanh(score / cap); 0: as they are
    logits_scale: float
    logits_cap: float
    gelu: bool  # whether gates go through GELU, by tanh, and not through SiLU
    windows: np.ndarray[Any, Any]  # [L]: how far back a position looks
    output: int  # address of the output matrix
    half: bool | int | float | np.ndarray[Any, Any]  # what weights are and products are computed in (``products.py``)
    powers: np.ndarray[Any, Any]  # [L, 4, 2]: what their inputs are scaled by, or the inputs of a scale
    last_powers: np.ndarray[Any, Any]  # [2]: those of the output matrix


class LlamaRows(NamedTuple):
    """Inputs, outputs and scratch buffers of a run, for B rows of W tokens; N = B * W."""

    x: np.ndarray[Any, Any]  # [N, hidden]: embedded tokens, written over
    found: np.ndarray[Any, Any]  # [N, hidden]: the result
    logits: np.ndarray[Any, Any]  # [N, V]: the other result; no rows where it is not wanted
    starts: np.ndarray[Any, Any]  # [B]
    slots: np.ndarray[Any, Any]  # [B]: the row of the buffers that each row's keys and values are in
    paths: np.ndarray[Any, Any]  # [N, D]: where the tokens lie that lead to each, by depth, if they are a tree
    depths: np.ndarray[Any, Any]  # [N]: and how deep each is; no entries: tokens follow one another
    cos: np.ndarray[Any, Any]  # [K, N, rotary / 2]: of all kinds of rotary positions
    sin: np.ndarray[Any, Any]
    capacity: int  # a multiple of PANEL
    stored: np.ndarray[Any, Any]  # [0]: its type stands for the format of keys and values (``kv_panels.py``)
    lines: int  # of a block of keys
    keys: np.ndarray[Any, Any]  # [L]: addresses of buffers [slots, shared, capacity / PANEL, lines, PANEL]
    values: np.ndarray[Any, Any]  # [L]: addresses of buffers [slots, shared, capacity, padded]
    kept: np.ndarray[Any, Any]  # [L]: which of the states a layer's input is, or -1
    states: np.ndarray[Any, Any]  # [N, S, hidden]
    queries: np.ndarray[Any, Any]  # [N, heads, depth]: between two pieces of work; with norms by width, keys behind
    cut: Cut  # of the attention
    parts: np.ndarray[Any, Any]  # [blocks, tiles, queries, padded + PANEL]: where items are tiles
    finished: np.ndarray[Any, Any]  # [L, blocks]: zeros
    mixed: np.ndarray[Any, Any]  # [N, heads * depth]
    gated: np.ndarray[Any, Any]  # [N, inner]
    added: np.ndarray[Any, Any]  # [N, hidden]: zeros; a product whose norm is added to x, where layers have such
    counters: np.ndarray[Any, Any]  # zeros, STRIDE bytes for every piece of work
    threads: int
