"""Queries, keys and values of a Llama-like layer and its attention, compiled by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from outrider.kernels.numba.attention_room import NOWHERE, Paths, Room
from outrider.kernels.numba.kv_writes import write_key, write_value
from outrider.kernels.numba.layer_math import norm_line, rotate
from outrider.kernels.numba.llama_records import ROWS, LlamaRows, LlamaWeights
from outrider.kernels.numba.products import ProductInput, multiply, some_rows
from outrider.kernels.numba.tiled_attention import add_up, attend_block
from outrider.kernels.numba.tiles import PANEL, compiled, pointer_to


@compiled
def _head(buffer: int, size: int, batch: LlamaRows, shared: int, row: int, which: int) -> Any:
    """Where the keys or values of one head of a row begin, ``size`` numbers a position."""
    return buffer + batch.stored.itemsize * size * batch.capacity * (batch.slots[row] * shared + which)


@compiled
def project(
    model: LlamaWeights, batch: LlamaRows, layer: int, head: int, given: ProductInput, temp: Any, line: Any
) -> None:
    """Queries, keys or values of one head; keys and values go to their place in the buffers."""
    width, depth, panels = len(batch.x) // len(batch.starts), model.depth, model.padded // PANEL
    normed = len(model.query_norms) > 0 and not model.by_width
    key, value = head - model.heads, head - model.heads - model.shared
    cos, sin = batch.cos[model.kinds[layer]], batch.sin[model.kinds[layer]]
    for row in range(len(batch.x)):
        if row % ROWS == 0:
            multiply(some_rows(given, row, row + ROWS), model.places[layer, 0], panels * head, panels, temp)
        found, sequence = temp[row % ROWS], row // width
        place = batch.starts[sequence] + row - width * sequence
        if model.biases[layer, 0]:
            bias = carray(pointer_to(model.biases[layer, 0] + 4 * model.padded * head), (depth,), np.float32)
            for j in range(depth):
                found[j] += bias[j]
        if value >= 0:
            values = _head(batch.values[layer], model.padded, batch, model.shared, sequence, value)
            write_value(batch.stored, values, model.padded, place, found, depth)
            continue
        if model.by_width:
            batch.queries[row, head] = found[:depth]
            continue
        if normed:
            norm_line(found, model.key_norms[layer] if key >= 0 else model.query_norms[layer], model.epsilon)
        if key >= 0:
            rotate(found, cos[row], sin[row], line)
            keys = _head(batch.keys[layer], batch.lines, batch, model.shared, sequence, key)
            write_key(batch.stored, keys, batch.lines, place, line, depth)
        else:
            rotate(found, cos[row], sin[row], batch.queries[row, head])


@compiled
def norm_and_turn(model: LlamaWeights, batch: LlamaRows, layer: int, row: int, line: Any) -> None:
    """Queries and keys of one token whose norms are over the width of all heads, as ``project`` has left them."""
    whole = batch.queries.reshape((len(batch.x), (model.heads + model.shared) * model.depth))[row]
    norm_line(whole, model.query_norms[layer], model.epsilon)
    norm_line(whole[model.heads * model.depth :], model.key_norms[layer], model.epsilon)
    found, width = np.empty(model.depth, np.float32), len(batch.x) // len(batch.starts)
    cos, sin = batch.cos[model.kinds[layer], row], batch.sin[model.kinds[layer], row]
    for head in range(model.heads + model.shared):
        found[:] = batch.queries[row, head]
        if head < model.heads:
            rotate(found, cos, sin, batch.queries[row, head])
            continue
        rotate(found, cos, sin, line)
        keys = _head(batch.keys[layer], batch.lines, batch, model.shared, row // width, head - model.heads)
        write_key(batch.stored, keys, batch.lines, batch.starts[row // width] + row % width, line, model.depth)


@compiled
def mix(model: LlamaWeights, batch: LlamaRows, layer: int, item: int, room: Room) -> None:
    """Attention of the heads that share keys, for a block of tokens of one row, or one tile of that."""
    cut, width, group = batch.cut, len(batch.x) // len(batch.starts), model.heads // model.shared
    block, tile = (item // cut.tiles, item % cut.tiles) if cut.by_tile else (item, 0)
    pair, begin = block // cut.blocks, cut.tokens * (cut.blocks - 1 - block % cut.blocks)  # the longest first
    row, shared = pair // model.shared, pair % model.shared
    tokens, tree, first = min(cut.tokens, width - begin), len(batch.depths) > 0, row * width + begin
    for query in range(tokens * group):
        token, head = row * width + begin + query // group, group * shared + query % group
        room.end[query] = batch.starts[row] + (batch.depths[token] if tree else begin + query // group) + 1
        room.first[query] = max(0, room.end[query] - model.windows[layer])
        for j in range(model.depth):
            room.queries[query, j] = batch.queries[token, head, j] * np.float32(model.scale)
    # bytes of a number of each position
    before = batch.stored.itemsize * (batch.slots[row] * model.shared + shared) * batch.capacity
    parts = batch.parts[block] if cut.by_tile else room.parts
    finished = batch.finished.ctypes.data + 8 * (layer * batch.finished.shape[1] + block)
    if not attend_block(
        batch.stored, batch.keys[layer] + before * batch.lines, batch.lines,
        batch.values[layer] + before * model.padded, cut, tile, tokens * group, room, parts, finished,
        model.attention_cap,
        Paths(
            batch.starts[row] if tree else NOWHERE, batch.paths[first : first + tokens],
            batch.depths[first : first + tokens],
        ),
    ):  # fmt: skip
        return
    for query in range(tokens * group):
        token, head = row * width + begin + query // group, group * shared + query % group
        out = batch.mixed[token, head * model.depth : (head + 1) * model.depth]
        add_up(parts, query, room.first[query], room.end[query], room, out)
