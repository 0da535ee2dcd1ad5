"""All layers and the output matrix of a Llama-like model in one compiled call that runs on every thread.

All threads run the same function. A layer is five pieces of work, each cut into items. A thread takes the next item
from an atomic counter; the next piece starts when all items are finished. No thread waits for another to begin, so a
thread that is scheduled late delays none. Items write to separate memory, and each sum is over one row in a fixed order
(``tiles.py``): the bits depend neither on which thread took an item nor on the width of a run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from outrider.kernels.numba.code_cache import on_disk
from outrider.kernels.numba.kv_panels import write_key, write_value
from outrider.kernels.numba.layer_math import finish, norm, rotate, take
from outrider.kernels.numba.products import ProductInput, convert_input, input_room, multiply, product_input, some_rows
from outrider.kernels.numba.tiled_attention import Cut, Room, add_up, attend_block, room_for
from outrider.kernels.numba.tiles import PANEL, compiled, pointer_to
from outrider.kernels.numba.vector_math import silu

PIECES = 5
"""Pieces of work of a layer."""

ROWS = 36
"""Rows of a run that are multiplied with an item's weights at a time: their inputs stay in a core's own cache.

Of 128 rows of 1,536 inputs a Neoverse-N1 multiplied 1.7 times as many a second in blocks of 36 as all together.
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
    norms: np.ndarray[Any, Any]  # [2 L + 1, hidden]
    windows: np.ndarray[Any, Any]  # [L]: how far back a position looks
    output: int  # address of the output matrix
    half: bool | int  # whether products are computed in float16; of packed weights, an address (``products.py``)
    powers: np.ndarray[Any, Any]  # [L, 4, 2]: what their inputs are scaled by, or the inputs of a scale
    last_powers: np.ndarray[Any, Any]  # [2]: those of the output matrix


class LlamaRows(NamedTuple):
    """Inputs, outputs and scratch buffers of a run, for B rows of W tokens; N = B * W."""

    x: np.ndarray[Any, Any]  # [N, hidden]: embedded tokens, written over
    found: np.ndarray[Any, Any]  # [N, hidden]: the result
    logits: np.ndarray[Any, Any]  # [N, V]: the other result; no rows where it is not wanted
    starts: np.ndarray[Any, Any]  # [B]
    cos: np.ndarray[Any, Any]  # [N, depth / 2]
    sin: np.ndarray[Any, Any]
    capacity: int  # a multiple of PANEL
    stored: np.ndarray[Any, Any]  # [0]: its type stands for the format of keys and values (``kv_panels.py``)
    lines: int  # of a block of keys
    keys: np.ndarray[Any, Any]  # [L]: addresses of buffers [B, shared, capacity / PANEL, lines, PANEL]
    values: np.ndarray[Any, Any]  # [L]: addresses of buffers [B, shared, capacity, padded]
    kept: np.ndarray[Any, Any]  # [L]: which of the states a layer's input is, or -1
    states: np.ndarray[Any, Any]  # [S, N, hidden]
    queries: np.ndarray[Any, Any]  # [N, heads, depth]: between two pieces of work
    cut: Cut  # of the attention
    parts: np.ndarray[Any, Any]  # [blocks, tiles, queries, padded + PANEL]: where items are tiles
    finished: np.ndarray[Any, Any]  # [L, blocks]: zeros
    mixed: np.ndarray[Any, Any]  # [N, heads * depth]
    gated: np.ndarray[Any, Any]  # [N, inner]
    counters: np.ndarray[Any, Any]  # zeros, STRIDE bytes for every piece of work
    threads: int


@compiled
def _project(
    model: LlamaWeights, batch: LlamaRows, layer: int, head: int, given: ProductInput, temp: Any, line: Any
) -> None:
    """Queries, keys or values of one head; keys and values go to their place in the buffers."""
    width, depth, panels = len(batch.x) // len(batch.starts), model.depth, model.padded // PANEL
    size = batch.stored.itemsize
    for row in range(len(batch.x)):
        if row % ROWS == 0:
            multiply(some_rows(given, row, row + ROWS), model.places[layer, 0], panels * head, panels, temp)
        found = temp[row % ROWS]
        if model.biases[layer, 0]:
            bias = carray(pointer_to(model.biases[layer, 0] + 4 * model.padded * head), (depth,), np.float32)
            for j in range(depth):
                found[j] += bias[j]
        place = batch.starts[row // width] + row % width
        if head < model.heads:
            rotate(found, batch.cos[row], batch.sin[row], batch.queries[row, head])
        elif head < model.heads + model.shared:
            rotate(found, batch.cos[row], batch.sin[row], line)
            first = (row // width * model.shared + head - model.heads) * batch.capacity + place // PANEL * PANEL
            to = batch.keys[layer] + size * (first * batch.lines + place % PANEL)
            write_key(batch.stored, to, batch.lines, line, depth)
        else:
            first = (row // width * model.shared + head - model.heads - model.shared) * batch.capacity + place
            write_value(batch.stored, batch.values[layer] + size * first * model.padded, found, depth)


@compiled
def _mix(model: LlamaWeights, batch: LlamaRows, layer: int, item: int, room: Room) -> None:
    """Attention of the heads that share keys, for a block of tokens of one row, or one tile of that."""
    cut, width, group = batch.cut, len(batch.x) // len(batch.starts), model.heads // model.shared
    block, tile = (item // cut.tiles, item % cut.tiles) if cut.by_tile else (item, 0)
    pair, begin = block // cut.blocks, cut.tokens * (cut.blocks - 1 - block % cut.blocks)  # the longest first
    row, shared = pair // model.shared, pair % model.shared
    tokens = min(cut.tokens, width - begin)
    for query in range(tokens * group):
        token, head = row * width + begin + query // group, group * shared + query % group
        room.end[query] = batch.starts[row] + begin + query // group + 1
        room.first[query] = max(0, room.end[query] - model.windows[layer])
        for j in range(model.depth):
            room.queries[query, j] = batch.queries[token, head, j] * np.float32(model.scale)
    before = batch.stored.itemsize * pair * batch.capacity  # bytes of a number of each position
    parts = batch.parts[block] if cut.by_tile else room.parts
    finished = batch.finished.ctypes.data + 8 * (layer * batch.finished.shape[1] + block)
    if not attend_block(
        batch.stored, batch.keys[layer] + before * batch.lines, batch.lines,
        batch.values[layer] + before * model.padded, cut, tile, tokens * group, room, parts, finished,
    ):  # fmt: skip
        return
    for query in range(tokens * group):
        token, head = row * width + begin + query // group, group * shared + query % group
        out = batch.mixed[token, head * model.depth : (head + 1) * model.depth]
        add_up(parts, query, room.first[query], room.end[query], out)


@compiled
def _add_product(
    model: LlamaWeights, batch: LlamaRows, layer: int, which: int, given: ProductInput, item: int, step: int, temp: Any
) -> None:
    """Some columns of a product, added to x."""
    first = item * step
    panels = min(step, model.hidden // PANEL - first)
    for row in range(len(batch.x)):
        if row % ROWS == 0:
            multiply(some_rows(given, row, row + ROWS), model.places[layer, which], first, panels, temp)
        for j in range(PANEL * panels):
            batch.x[row, PANEL * first + j] += temp[row % ROWS, j]
        if model.biases[layer, which]:
            bias = carray(pointer_to(model.biases[layer, which]), (model.hidden,), np.float32)
            for j in range(PANEL * first, PANEL * (first + panels)):
                batch.x[row, j] += bias[j]


@compiled
def _gate(
    model: LlamaWeights, batch: LlamaRows, layer: int, item: int, step: int, given: ProductInput, temp: Any
) -> None:
    """Some columns of silu(gate) * up; a panel of the one lies behind the same of the other."""
    first = item * step
    panels = min(step, model.inner // PANEL - first)
    for row in range(len(batch.x)):
        if row % ROWS == 0:
            multiply(some_rows(given, row, row + ROWS), model.places[layer, 2], 2 * first, 2 * panels, temp)
        found = temp[row % ROWS]
        if model.biases[layer, 2]:
            bias = carray(pointer_to(model.biases[layer, 2] + 8 * PANEL * first), (2 * PANEL * panels,), np.float32)
            for j in range(2 * PANEL * panels):
                found[j] += bias[j]
        for panel in range(panels):
            gate = found[2 * PANEL * panel :].ctypes.data
            silu(gate, gate + 4 * PANEL, batch.gated[row, PANEL * (first + panel) :].ctypes.data)


@compiled
def _step(parts: int, threads: int) -> int:
    """Panels or heads of an item: two items a thread, since memory that is read in order comes sooner.

    Eight a thread, of which neighbours went to different threads, took a ninth longer on two cores.
    """
    return (parts + 2 * threads - 1) // (2 * threads)


@compiled
def _add_all(
    model: LlamaWeights, batch: LlamaRows, layer: int, piece: int, which: int, given: ProductInput, step: int, temp: Any
) -> None:
    """A piece of work: a product, added to x."""
    counters = batch.counters.ctypes.data
    items = (model.hidden // PANEL + step - 1) // step
    done, item = 0, take(counters, piece)
    if item < items:
        convert_input(given, model.powers[layer, which])
    while item < items:
        _add_product(model, batch, layer, which, given, item, step, temp)
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)


@compiled
def _write(model: LlamaWeights, x: Any, logits: Any, counters: int, piece: int, threads: int) -> None:
    """A piece of work: x [N, inputs] times the output matrix -> logits [N, V]."""
    rows, vocabulary = x.shape[0], logits.shape[1]
    panels = (vocabulary + PANEL - 1) // PANEL
    step = max(1, panels // (32 * threads))
    items = (panels + step - 1) // step
    temp = np.empty((rows, PANEL * step), np.float32)
    room = input_room(model.half, rows, x.shape[1])
    given = product_input(model.half, x, room, np.empty(rows, np.float32))
    done, item = 0, take(counters, piece)
    if item < items:
        convert_input(given, model.last_powers)
    while item < items:
        first, count = item * step, min(step, panels - item * step)
        multiply(given, model.output, first, count, temp)
        end = min(vocabulary, PANEL * (first + count))
        for row in range(rows):
            logits[row, PANEL * first : end] = temp[row, : end - PANEL * first]
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)


@on_disk
def layers(model: LlamaWeights, batch: LlamaRows) -> None:
    """x -> found and logits, with keys, values and states written on the way.

    Every thread calls this with the same arguments.
    """
    rows, hidden, counters, threads = len(batch.x), model.hidden, batch.counters.ctypes.data, batch.threads
    inward, across = _step(hidden // PANEL, threads), _step(model.inner // PANEL, threads)
    thirds = model.heads + 2 * model.shared
    beside = _step(thirds, threads)
    normed = np.empty((rows, hidden), np.float32)
    temp = np.empty((min(rows, ROWS), max(model.padded, PANEL * inward, 2 * PANEL * across)), np.float32)
    line, places = np.empty(model.depth, np.float32), room_for(batch.cut, model.heads // model.shared, model.depth)
    widest = max(hidden, batch.mixed.shape[1], model.inner)
    room, factors = input_room(model.half, rows, widest), np.empty(rows, np.float32)
    around = product_input(model.half, normed, room, factors)
    mixed = product_input(model.half, batch.mixed, room, factors)
    gated = product_input(model.half, batch.gated, room, factors)
    for layer in range(model.layers):
        piece = PIECES * layer
        items = (thirds + beside - 1) // beside
        done, item = 0, take(counters, piece)
        if item < items:  # only then: while an item of this piece is open, no thread changes x
            norm(batch.x, model.norms[2 * layer], model.epsilon, normed)
            convert_input(around, model.powers[layer, 0])
        while item < items:
            if item == 0 and batch.kept[layer] >= 0:
                batch.states[batch.kept[layer]] = batch.x
            for head in range(item * beside, min(thirds, (item + 1) * beside)):
                _project(model, batch, layer, head, around, temp, line)
            done, item = done + 1, take(counters, piece)
        finish(counters, piece, done, items)

        piece += 1
        items = len(batch.starts) * model.shared * batch.cut.blocks * (batch.cut.tiles if batch.cut.by_tile else 1)
        done, item = 0, take(counters, piece)
        while item < items:
            _mix(model, batch, layer, item, places)
            done, item = done + 1, take(counters, piece)
        finish(counters, piece, done, items)

        piece += 1
        _add_all(model, batch, layer, piece, 1, mixed, inward, temp)

        piece += 1
        items = (model.inner // PANEL + across - 1) // across
        done, item = 0, take(counters, piece)
        if item < items:
            norm(batch.x, model.norms[2 * layer + 1], model.epsilon, normed)
            convert_input(around, model.powers[layer, 2])
        while item < items:
            _gate(model, batch, layer, item, across, around, temp)
            done, item = done + 1, take(counters, piece)
        finish(counters, piece, done, items)

        piece += 1
        _add_all(model, batch, layer, piece, 3, gated, inward, temp)
    piece = PIECES * model.layers
    done, item = 0, take(counters, piece)
    while item < rows:
        norm(batch.x[item : item + 1], model.norms[2 * model.layers], model.epsilon, batch.found[item : item + 1])
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, rows)
    if len(batch.logits):
        _write(model, batch.found, batch.logits, counters, piece + 1, threads)


packed_layers = on_disk(layers.py_func, "packed_layers")
"""The same for packed weights."""
