"""All layers and the output matrix of a Llama-like model in one compiled call that runs on every thread.

All threads run the same function. A layer is five pieces of work, or more where it has more norms, each cut into items.
A thread takes the next item from an atomic counter; the next piece starts when all items are finished. No thread waits
for another to begin, so a thread that is scheduled late delays none. Items write to separate memory, and each sum is
over one row in a fixed order (``tiles.py``): the bits depend neither on which thread took an item nor on the width of a
run. What only some families have is decided outside of the loops over numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from outrider.kernels.numba.arrays import aligned_lines, unowned
from outrider.kernels.numba.attention_room import room_for
from outrider.kernels.numba.code_cache import on_disk
from outrider.kernels.numba.layer_math import finish, norm, norm_line, take
from outrider.kernels.numba.llama_attention import mix, norm_and_turn, project
from outrider.kernels.numba.llama_records import (
    DOWN,
    GATE,
    MIX,
    OUT,
    PIECES,
    PROJECT,
    ROWS,
    TURN,
    LlamaRows,
    LlamaWeights,
)
from outrider.kernels.numba.output_matrix import write_logits
from outrider.kernels.numba.products import (
    ProductInput,
    convert_input,
    end_products,
    input_room,
    multiply,
    product_input,
    some_rows,
)
from outrider.kernels.numba.tiles import PANEL, compiled, pointer_to
from outrider.kernels.numba.vector_math import gelu, silu


@compiled
def _read(model: LlamaWeights, x: Any, row: int, out: Any) -> None:
    """x, normed by a row of all norms; as it is where there is none."""
    if row < 0:
        out[:] = x
    else:
        norm(x, model.norms[row], model.epsilon, out)


@compiled
def _add_product(
    model: LlamaWeights, batch: LlamaRows, layer: int, which: int, given: ProductInput, item: int, step: int, temp: Any,
    to: Any,
) -> None:  # fmt: skip
    """Some columns of a product, added to x or to ``batch.added``."""
    first = item * step
    panels = min(step, model.hidden // PANEL - first)
    residual = np.float32(model.residual)
    for row in range(len(batch.x)):
        if row % ROWS == 0:
            multiply(some_rows(given, row, row + ROWS), model.places[layer, which], first, panels, temp)
        if residual != 1:
            for j in range(PANEL * panels):
                temp[row % ROWS, j] *= residual
        for j in range(PANEL * panels):
            to[row, PANEL * first + j] += temp[row % ROWS, j]
        if model.biases[layer, which]:
            bias = carray(pointer_to(model.biases[layer, which]), (model.hidden,), np.float32)
            for j in range(PANEL * first, PANEL * (first + panels)):
                to[row, j] += bias[j] * residual


@compiled
def _gate(
    model: LlamaWeights, batch: LlamaRows, layer: int, item: int, step: int, given: ProductInput, temp: Any
) -> None:
    """Some columns of silu(gate) * up, or with GELU; a panel of the one lies behind the same of the other."""
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
        gates, to = found.ctypes.data, batch.gated[row, PANEL * first :].ctypes.data
        if model.gelu:
            for panel in range(panels):
                gelu(gates + 8 * PANEL * panel, gates + 4 * PANEL * (2 * panel + 1), to + 4 * PANEL * panel)
        else:
            for panel in range(panels):
                silu(gates + 8 * PANEL * panel, gates + 4 * PANEL * (2 * panel + 1), to + 4 * PANEL * panel)


@compiled
def _step(parts: int, threads: int) -> int:
    """Panels or heads of an item: two items a thread, since memory that is read in order comes sooner.

    Eight a thread, of which neighbours went to different threads, took a ninth longer on two cores.
    """
    return (parts + 2 * threads - 1) // (2 * threads)


@compiled
def _add_all(
    model: LlamaWeights, batch: LlamaRows, layer: int, piece: int, which: int, given: ProductInput, step: int,
    temp: Any, normed: int,
) -> None:  # fmt: skip
    """A piece of work: a product, added to x; with a row of all norms, a second piece: its norm is added."""
    counters = batch.counters.ctypes.data
    items = (model.hidden // PANEL + step - 1) // step
    to = batch.x if normed < 0 else batch.added
    done, item = 0, take(counters, piece)
    if item < items:
        convert_input(given, model.powers[layer, which])
    while item < items:
        _add_product(model, batch, layer, which, given, item, step, temp, to)
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)
    if normed >= 0:
        _add_normed(model, batch, piece + 1, normed)


@compiled
def _add_normed(model: LlamaWeights, batch: LlamaRows, piece: int, normed: int) -> None:
    """A piece of work: x and the norm of what is to be added, which is zero again behind it."""
    counters, rows = batch.counters.ctypes.data, len(batch.x)
    done, item = 0, take(counters, piece)
    while item < rows:
        line = batch.added[item]
        norm_line(line, model.norms[normed], model.epsilon)
        for j in range(model.hidden):
            batch.x[item, j] += line[j]
            line[j] = 0
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, rows)


@compiled
def _turn_all(model: LlamaWeights, batch: LlamaRows, layer: int, piece: int, line: Any) -> None:
    """A piece of work: norms over the width of all queries and keys, and their rotation."""
    counters, rows = batch.counters.ctypes.data, len(batch.x)
    done, item = 0, take(counters, piece)
    while item < rows:
        norm_and_turn(model, batch, layer, item, line)
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, rows)


@on_disk
def layers(model: LlamaWeights, batch: LlamaRows) -> None:
    """x -> found and logits, with keys, values and states written on the way.

    Every thread calls this with the same arguments.
    """
    model, batch = unowned(model), unowned(batch)
    rows, hidden, counters, threads = len(batch.x), model.hidden, batch.counters.ctypes.data, batch.threads
    inward, across = _step(hidden // PANEL, threads), _step(model.inner // PANEL, threads)
    thirds = model.heads + 2 * model.shared
    beside = _step(thirds, threads)
    normed = aligned_lines(rows, hidden, np.float32)
    columns = max(model.padded, PANEL * inward, 2 * PANEL * across)
    temp = aligned_lines(min(rows, ROWS), columns + PANEL, np.float32)
    line, places = np.empty(model.depth, np.float32), room_for(batch.cut, model.depth)
    widest = max(hidden, batch.mixed.shape[1], model.inner)
    room = input_room(model.half, rows, widest)
    around = product_input(model.half, normed, room)
    mixed = product_input(model.half, batch.mixed, room)
    gated = product_input(model.half, batch.gated, room)
    for layer in range(model.layers):
        first, norms = PIECES * layer, model.norm_rows[layer]
        piece = first + PROJECT
        items = (thirds + beside - 1) // beside
        done, item = 0, take(counters, piece)
        if item < items:  # only then: while an item of this piece is open, no thread changes x
            _read(model, batch.x, norms[0], normed)
            convert_input(around, model.powers[layer, 0])
        while item < items:
            if item == 0 and batch.kept[layer] >= 0:
                batch.states[:, batch.kept[layer]] = batch.x
            for head in range(item * beside, min(thirds, (item + 1) * beside)):
                project(model, batch, layer, head, around, temp, line)
            done, item = done + 1, take(counters, piece)
        finish(counters, piece, done, items)
        if model.by_width:
            _turn_all(model, batch, layer, first + TURN, line)

        piece = first + MIX
        items = len(batch.starts) * model.shared * batch.cut.blocks * (batch.cut.tiles if batch.cut.by_tile else 1)
        done, item = 0, take(counters, piece)
        while item < items:
            mix(model, batch, layer, item, places)
            done, item = done + 1, take(counters, piece)
        finish(counters, piece, done, items)

        _add_all(model, batch, layer, first + OUT, 1, mixed, inward, temp, norms[1])

        piece = first + GATE
        items = (model.inner // PANEL + across - 1) // across
        done, item = 0, take(counters, piece)
        if item < items:
            _read(model, batch.x, norms[2], normed)
            convert_input(around, model.powers[layer, 2])
        while item < items:
            _gate(model, batch, layer, item, across, around, temp)
            done, item = done + 1, take(counters, piece)
        finish(counters, piece, done, items)

        _add_all(model, batch, layer, first + DOWN, 3, gated, inward, temp, norms[3])
    piece = PIECES * model.layers
    done, item = 0, take(counters, piece)
    while item < rows:
        norm(batch.x[item : item + 1], model.norms[-1], model.epsilon, batch.found[item : item + 1])
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, rows)
    if len(batch.logits):
        found = product_input(model.half, batch.found, room)
        scale, most = np.float32(model.logits_scale), np.float32(model.logits_cap)
        write_logits(found, model.output, model.last_powers, batch.logits, counters, piece + 1, threads, scale, most)
    end_products(around)


amx_layers = on_disk(layers.py_func, "amx_layers")
"""The same for products by AMX."""

packed_layers = on_disk(layers.py_func, "packed_layers")
"""The same for packed weights."""

float32_layers = on_disk(layers.py_func, "float32_layers")
"""The same for weights of float32."""
