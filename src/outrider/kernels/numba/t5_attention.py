"""Attention of a T5-like layer, compiled by numba: with relative positions to a row's own text, or to its source."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from outrider.kernels.numba.layer_math import blend_values, finish, norm, score_keys, soften, take
from outrider.kernels.numba.products import ProductInput, convert_input, multiply, some_rows
from outrider.kernels.numba.t5_records import CROSS_Q, QKV, T5Memory, T5Run, T5Stack
from outrider.kernels.numba.tiles import PANEL, compiled, pointer_to


@compiled
def _attend(query: Any, keys: Any, values: Any, bias: Any, scores: Any, out: Any) -> None:
    """One query over keys [P, depth] and values; ``bias`` [P] is added to the scores, or is empty."""
    if len(keys) == 0:  # a row without a source
        out[:] = 0
        return
    score_keys(query, keys, scores)
    for place in range(len(bias)):
        scores[place] += bias[place]
    soften(scores[: len(keys)], 1.0)
    blend_values(scores, values, out)


@compiled
def buffer(model: T5Stack, memory: T5Memory, address: int, row: int, head: int) -> Any:
    """The keys or values of one head of one row: [capacity, depth]."""
    each = 4 * memory.capacity * model.depth
    return carray(pointer_to(address + (row * model.heads + head) * each), (memory.capacity, model.depth), np.float32)


@compiled
def _keep(model: T5Stack, run: T5Run, layer: int, head: int, rows: Any, given: ProductInput, temp: Any) -> None:
    """Keys and values of one head for the tokens of some rows, into the buffers."""
    panels, first = model.padded // PANEL, run.firsts[rows[0]]
    for kind in range(2):
        multiply(given, model.places[layer, QKV], panels * (model.heads * (kind + 1) + head), panels, temp)
        address = run.own.values[layer] if kind else run.own.keys[layer]
        for row in range(rows[0], rows[1]):
            kept = buffer(model, run.own, address, run.rows[row], head)
            for token in range(run.firsts[row], run.firsts[row + 1]):
                for j in range(model.depth):
                    kept[run.at[token], j] = temp[token - first, j]


@compiled
def _mix(model: T5Stack, run: T5Run, layer: int, head: int, rows: Any, queries: Any, scores: Any, own: bool) -> None:
    """Attention of one head for the tokens of some rows: to their own texts, or to their sources."""
    reach, depth = run.bias.shape[1] // 2, model.depth
    memory = run.own if own else run.cross
    for row in range(rows[0], rows[1]):
        keys = buffer(model, memory, memory.keys[layer], run.rows[row], head)
        values = buffer(model, memory, memory.values[layer], run.rows[row], head)
        for token in range(run.firsts[row], run.firsts[row + 1]):
            seen = run.seen[token] if own else run.sources[run.rows[row]]
            start = reach - run.at[token]
            bias = run.bias[head, start : start + seen] if own else run.bias[head, :0]
            out = run.mixed[token, depth * head : depth * (head + 1)]
            query = queries[token - run.firsts[rows[0]], :depth]
            _attend(query, keys[:seen], values[:seen], bias, scores, out)


@compiled
def _parts(rows: int, heads: int, threads: int) -> int:
    """Parts that rows are cut into, so that with the heads there is work for every thread."""
    return max(1, min(rows, (2 * threads + heads - 1) // heads))


@compiled
def attention(
    model: T5Stack, run: T5Run, layer: int, piece: int, given: ProductInput, temp: Any, scores: Any, own: bool
) -> None:
    """A piece of work: x, normed -> mixed. An item is a head of some rows: queries, keys, values and attention."""
    which, before = (QKV, 0) if own else (CROSS_Q, 1)
    rows, panels, counters = len(run.rows), model.padded // PANEL, run.counters.ctypes.data
    parts = _parts(rows, model.heads, run.threads)
    items, converted = parts * model.heads, np.zeros(parts, np.bool_)
    done, item = 0, take(counters, piece)
    if item < items:  # only then: while an item of this piece is open, no thread changes x
        norm(run.x, model.norms[layer, before], model.epsilon, given.x)
    while item < items:
        if own and item == 0 and run.kept[layer] >= 0:
            run.states[run.kept[layer]] = run.x
        head, part = item // parts, item % parts
        some = (rows * part // parts, rows * (part + 1) // parts)
        mine = some_rows(given, run.firsts[some[0]], run.firsts[some[1]])
        if not converted[part]:
            convert_input(mine, model.powers[layer, which])
            converted[part] = True
        if own:
            _keep(model, run, layer, head, some, mine, temp)
        multiply(mine, model.places[layer, which], panels * head, panels, temp)
        _mix(model, run, layer, head, some, temp, scores, own)
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)
