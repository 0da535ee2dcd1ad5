"""A feature head for one row, compiled by numba: a whole draft is one call that runs on every thread.

The layers of ``drafters/head/layers.py`` on packed weights: a draft may be rounded as one likes. Threads share
pieces of work as in ``llama.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.kernels.numba.arrays import unowned
from outrider.kernels.numba.code_cache import on_disk
from outrider.kernels.numba.head_records import Drawing, HeadMatrices, KVCache, Reading, Scratch
from outrider.kernels.numba.layer_math import STRIDE, attend, exp, finish, norm, rotate, take
from outrider.kernels.numba.packed_formats import UNIT
from outrider.kernels.numba.products import convert_input, end_products, input_room, multiply, product_input
from outrider.kernels.numba.race import race, shares
from outrider.kernels.numba.rows import Table, look_up
from outrider.kernels.numba.tiles import PANEL, compiled

READING, GUESSING = 3, 6
"""Pieces of work: of reading text, and of a guess beside two for every block."""


@compiled
def _multiply(counters: int, piece: int, weights: int, given: Any, plus: Any, out: Any, threads: int) -> None:
    """A piece of work: plus [T, size] and given times weights -> out [T, size]. ``plus`` may be ``out``."""
    rows, panels = out.shape[0], (out.shape[1] + PANEL - 1) // PANEL
    step = max(1, panels // (8 * threads))
    items = (panels + step - 1) // step
    temp = np.empty((rows, PANEL * step), np.float32)
    done, item = 0, take(counters, piece)
    while item < items:
        first, count = item * step, min(step, panels - item * step)
        multiply(given, weights, first, count, temp)
        end = min(out.shape[1], PANEL * (first + count))
        for row in range(rows):
            for j in range(PANEL * first, end):
                out[row, j] = plus[row, j] + temp[row, j - PANEL * first]
        done, item = done + 1, take(counters, piece)
    end_products(given)
    finish(counters, piece, done, items)


@compiled
def _given(head: HeadMatrices, x: Any) -> Any:
    """Inputs of products: x [T, inputs], rounded to eight bits by every thread for itself."""
    given = product_input(head.product, x, input_room(head.product, x.shape[0], x.shape[1]))
    convert_input(given, (UNIT, 0))
    return given


@compiled
def _joined(head: HeadMatrices, x: Any, tokens: Any) -> Any:
    """States and the tokens behind them, side by side, as products read them."""
    both = np.empty((len(x), 2 * head.size), np.float32)
    norm(x, head.norms[0], head.epsilon, both[:, : head.size])
    norm(tokens, head.norms[1], head.epsilon, both[:, head.size :])
    return _given(head, both)


@compiled
def _normed(head: HeadMatrices, which: int, x: Any) -> Any:
    found = np.empty_like(x)
    norm(x, head.norms[which], head.epsilon, found)
    return _given(head, found)


@compiled
def _project(head: HeadMatrices, cache: KVCache, counters: int, piece: int, x: Any, place: int, queries: Any) -> None:
    """A piece of work: keys and values of x [T, size] at positions from ``place`` on; queries too, where wanted."""
    rows = len(x)
    first = 0 if len(queries) else head.heads
    items = head.heads + 2 * head.shared - first
    temp = np.empty((rows, head.padded), np.float32)
    given = _normed(head, 2, x)
    panels = head.padded // PANEL
    done, item = 0, take(counters, piece)
    while item < items:
        at = item + first
        multiply(given, head.attention[0], panels * at, panels, temp)
        for row in range(rows):
            cos, sin = cache.cos[place + row], cache.sin[place + row]
            if at < head.heads:
                rotate(temp[row], cos, sin, queries[at])
            elif at < head.heads + head.shared:
                rotate(temp[row], cos, sin, cache.keys[at - head.heads, place + row])
            else:
                cache.values[at - head.heads - head.shared, place + row] = temp[row, : head.depth]
        done, item = done + 1, take(counters, piece)
    end_products(given)
    finish(counters, piece, done, items)


@compiled
def _read(head: HeadMatrices, cache: KVCache, reading: Reading, counters: int, threads: int) -> None:
    """Keys are kept of all positions but the last, whose are made with its guess."""
    states, seen, last = reading.states, reading.seen, reading.states.shape[1] - 1
    if head.fuse:
        others = np.empty((len(states), last * head.size), np.float32)
        for layer in range(last):
            columns = others[:, layer * head.size : (layer + 1) * head.size]
            norm(states[:, layer], head.layer_norms[layer], head.epsilon, columns)
        _multiply(counters, 0, head.fuse, _given(head, others), states[:, last], seen, threads)
        _multiply(counters, 1, head.join, _joined(head, seen, reading.tokens), seen, reading.x, threads)
    else:
        given = _joined(head, states[:, last], reading.tokens)
        _multiply(counters, 1, head.join, given, states[:, last], reading.x, threads)
    if head.heads and len(states) > 1:
        _project(head, cache, counters, 2, reading.x[:-1], reading.start, np.empty((0, head.depth), np.float32))


@compiled
def _look(
    head: HeadMatrices, cache: KVCache, counters: int, piece: int, place: int, oldest: int, queries: Any, mixed: Any
) -> None:
    """A piece of work: attention from where it is over all before."""
    scores = np.empty(place + 1 - oldest, np.float32)
    seen, scale = slice(oldest, place + 1), np.float32(head.depth) ** np.float32(-0.5)
    done, item = 0, take(counters, piece)
    while item < head.heads:
        group = item // (head.heads // head.shared)
        out = mixed[0, item * head.depth : (item + 1) * head.depth]
        attend(queries[item], cache.keys[group, seen], cache.values[group, seen], scale, scores, out)
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, head.heads)


@compiled
def _gate(head: HeadMatrices, counters: int, piece: int, block: int, x: Any, gated: Any, threads: int) -> None:
    """A piece of work: silu(gate) * up."""
    panels = head.inner // PANEL
    step = max(1, panels // (8 * threads))
    items = (panels + step - 1) // step
    temp = np.empty((1, 2 * PANEL * step), np.float32)
    given = _normed(head, 3 + block, x)
    done, item = 0, take(counters, piece)
    while item < items:
        first, count = item * step, min(step, panels - item * step)
        multiply(given, head.blocks[block, 0], 2 * first, 2 * count, temp)
        for panel in range(count):
            for j in range(PANEL):
                gate, up = temp[0, 2 * PANEL * panel + j], temp[0, 2 * PANEL * panel + PANEL + j]
                gated[0, PANEL * (first + panel) + j] = gate / (np.float32(1) + exp(-gate)) * up
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)


@compiled
def _write(head: HeadMatrices, counters: int, piece: int, x: Any, logits: Any, best: Any, rate: float) -> None:
    """A piece of work: the output layer, and of each item the largest logit, its place, and all others beside it."""
    panels = (head.tokens + PANEL - 1) // PANEL
    step, items = max(1, panels // len(best)), len(best)
    step += step * items < panels
    temp = np.empty((1, PANEL * step), np.float32)
    given = _given(head, np.ascontiguousarray(x))
    done, item = 0, take(counters, piece)
    while item < items:
        first, count = item * step, max(0, min(step, panels - item * step))
        multiply(given, head.output, first, count, temp)
        found = temp[0, : max(0, min(head.tokens, PANEL * (first + count)) - PANEL * first)]
        logits[0, PANEL * first : PANEL * first + len(found)] = found
        best[item, 0], best[item, 1], best[item, 2] = _summary(found, PANEL * first, rate)
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)


@compiled
def _summary(logits: Any, first: int, rate: float) -> Any:
    """The largest, its place, and what all weigh beside it at temperature 1 / rate."""
    most, place = np.float32(-np.inf), first
    for j in range(len(logits)):
        if logits[j] > most:
            most, place = logits[j], first + j
    total = np.float32(0)
    for j in range(len(logits)):
        total += exp((logits[j] - most) * np.float32(rate))
    return most, place, total


@compiled
def _think(
    head: HeadMatrices, cache: KVCache, before: Any, token: Any, x: Any, place: int, oldest: int, between: Any,
    counters: int, threads: int,
) -> None:  # fmt: skip
    """The state x [1, size] behind position ``place``.

    ``token`` [1, size] is the last guess, ``before`` [1, size] the state it came from; without one (no rows), x is
    what was read.
    """
    wide = head.heads * head.depth
    if len(token):
        _multiply(counters, 0, head.join, _joined(head, before, token), before, x, threads)
    if head.heads:
        queries = between[0, :wide].reshape((head.heads, head.depth))
        mixed = between[:, wide : 2 * wide]
        _project(head, cache, counters, 1, x, place, queries)
        _look(head, cache, counters, 2, place, oldest, queries, mixed)
        _multiply(counters, 3, head.attention[1], _given(head, np.ascontiguousarray(mixed)), x, x, threads)
    gated = between[:, 2 * wide :]
    for block in range(len(head.blocks)):
        _gate(head, counters, 4 + 2 * block, block, x, gated, threads)
        given = _given(head, np.ascontiguousarray(gated))
        _multiply(counters, 5 + 2 * block, head.blocks[block, 1], given, x, x, threads)


@compiled
def _draw(
    drawing: Drawing, counters: int, piece: int, logits: Any, best: Any, most: float, total: float, key: int, q: Any
) -> None:
    """A piece of work: q, and in each item who arrives first; see ``race.py``."""
    items = len(best)
    step = (logits.shape[1] + items - 1) // items
    temp = np.empty(step, np.float32)
    done, item = 0, take(counters, piece)
    while item < items:
        first, end = min(item * step, logits.shape[1]), min((item + 1) * step, logits.shape[1])
        shares(logits[0, first:end], most, drawing.rate, total, q[first:end])
        best[item, 3], place = race(q[first:end], drawing.counters[first:end], key, temp)
        best[item, 4] = first + place
        if first == end:  # nobody runs in it, and its place is no token's: it must not win where others are no numbers
            best[item, 3] = -np.inf
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)


@compiled
def _first_largest(best: Any, value: int, place: int) -> Any:
    """Of all items."""
    most, chosen = -np.inf, 0
    for item in range(len(best)):
        if best[item, value] > most:
            most, chosen = best[item, value], int(best[item, place])
    return most, chosen


@on_disk
def draft(
    head: HeadMatrices, cache: KVCache, reading: Reading, drawing: Drawing, scratch: Scratch,
    embedding: Table, tokens: Any, floors: Any, ends_behind: int, place: int, oldest: int, found: Any, threads: int,
) -> int:  # fmt: skip
    """Read, then guess after guess, the likeliest token each time or a drawn one -> how many there are; found [G].

    The first guess stands behind position ``place``. ``tokens`` [N] are those that logits [1, N] are of. Guess k is
    made only if all before it are right with a chance of floors[k], by the head's own confidence, and the first is not
    the token ``ends_behind``. Every thread calls this with the same arguments, and comes to the same end by itself.
    """
    head, cache, reading, scratch = unowned(head), unowned(cache), unowned(reading), unowned(scratch)
    pieces, chance, first = GUESSING + 2 * len(head.blocks), 1.0, scratch.counters.ctypes.data
    if len(reading.states):
        _read(head, cache, reading, first, threads)
    x, before = reading.x[len(reading.x) - 1 :], reading.before
    token = np.empty((1, head.size), np.float32)
    token[: len(reading.guess)] = reading.guess
    for k in range(len(floors)):
        if k and (chance < floors[k] or found[0] == ends_behind):
            return k
        counters, best = first + STRIDE * (READING + pieces * k), scratch.best[k]
        if k:
            x, before = scratch.states[k % 2 : k % 2 + 1], x
        given = token if k or len(reading.guess) else token[:0]
        _think(head, cache, before, given, x, place + k, oldest, scratch.between, counters, threads)
        _write(head, counters, pieces - 2, x, scratch.logits, best, drawing.rate)
        most, chosen = _first_largest(best, 0, 1)
        total = 0.0
        for item in range(len(best)):
            total += best[item, 2] * exp(np.float32((best[item, 0] - most) * drawing.rate))
        if len(drawing.keys):
            q = drawing.probs[k]
            _draw(drawing, counters, pieces - 1, scratch.logits, best, most, total, drawing.keys[k], q)
            _, chosen = _first_largest(best, 3, 4)
        chance /= total
        found[k] = tokens[chosen]
        if k + 1 < len(floors):  # else there may be no such row: one guess at a time comes with its embedding
            look_up(embedding, tokens[chosen], token[0])
    return len(floors)
