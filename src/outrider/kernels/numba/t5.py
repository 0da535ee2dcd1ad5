"""All layers of a T5-like encoder or decoder, and its output matrix, in one compiled call that runs on every thread.

As in ``llama.py`` all threads run the same function and take items of work from atomic counters. Tokens of a run lie
one behind the other, row after row, and rows may have any number of them: sources of any lengths are encoded together
without padding. Items write to separate memory, and each sum is over one token in a fixed order: the bits of a row
depend neither on the thread, nor on the width of a run, nor on the rows beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.kernels.numba.arrays import unowned
from outrider.kernels.numba.code_cache import on_disk
from outrider.kernels.numba.layer_math import exp, finish, norm, take
from outrider.kernels.numba.output_matrix import write_logits
from outrider.kernels.numba.products import (
    ProductInput,
    convert_input,
    end_products,
    input_room,
    multiply,
    product_input,
)
from outrider.kernels.numba.rows import look_up
from outrider.kernels.numba.t5_attention import attention, buffer
from outrider.kernels.numba.t5_records import (
    BESIDE,
    CROSS_OUT,
    GELU,
    INNER,
    OUT,
    OUTER,
    PIECES,
    RELU,
    T5Memory,
    T5Run,
    T5Stack,
)
from outrider.kernels.numba.tiles import PANEL, compiled


@compiled
def _step(panels: int, threads: int) -> int:
    """Panels of an item: two items a thread, since memory that is read in order comes sooner."""
    return (panels + 2 * threads - 1) // (2 * threads)


@compiled
def _add(model: T5Stack, run: T5Run, layer: int, piece: int, which: int, given: ProductInput, temp: Any) -> None:
    """A piece of work: a product, added to x."""
    counters, whole = run.counters.ctypes.data, model.hidden // PANEL
    step = _step(whole, run.threads)
    items = (whole + step - 1) // step
    done, item = 0, take(counters, piece)
    if item < items:
        convert_input(given, model.powers[layer, which])
    while item < items:
        first, panels = item * step, min(step, whole - item * step)
        multiply(given, model.places[layer, which], first, panels, temp)
        for token in range(len(run.x)):
            for j in range(PANEL * panels):
                run.x[token, PANEL * first + j] += temp[token, j]
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)


@compiled
def _active(x: Any, activation: int) -> Any:
    if activation == RELU:
        return max(x, np.float32(0))
    if activation == GELU:  # (1 + tanh u) / 2 is the logistic function of 2 u
        u = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
        return x / (np.float32(1) + exp(np.float32(-2) * u))
    return x / (np.float32(1) + exp(-x))


@compiled
def _feed(model: T5Stack, run: T5Run, layer: int, piece: int, given: ProductInput, temp: Any) -> None:
    """A piece of work: x, normed -> the activations of the feed-forward layer.

    Of a gated one, a panel of the gate lies before the same panel of what it gates.
    """
    counters, whole, each = run.counters.ctypes.data, model.inner // PANEL, 2 if model.gated else 1
    step = _step(whole, run.threads)
    items = (whole + step - 1) // step
    done, item = 0, take(counters, piece)
    if item < items:
        norm(run.x, model.norms[layer, 2], model.epsilon, given.x)
        convert_input(given, model.powers[layer, INNER])
    while item < items:
        first, panels = item * step, min(step, whole - item * step)
        multiply(given, model.places[layer, INNER], each * first, each * panels, temp)
        for token in range(len(run.x)):
            for panel in range(panels):
                out = run.between[token, PANEL * (first + panel) : PANEL * (first + panel + 1)]
                for j in range(PANEL):
                    out[j] = _active(temp[token, each * PANEL * panel + j], model.activation)
                if model.gated:
                    for j in range(PANEL):
                        out[j] *= temp[token, (2 * panel + 1) * PANEL + j]
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)


@compiled
def _embed(model: T5Stack, run: T5Run, piece: int) -> None:
    """A piece of work: tokens -> x."""
    done, item = 0, take(run.counters.ctypes.data, piece)
    while item < len(run.tokens):
        look_up(model.embedding, run.tokens[item], run.x[item])
        done, item = done + 1, take(run.counters.ctypes.data, piece)
    finish(run.counters.ctypes.data, piece, done, len(run.tokens))


@compiled
def _end(model: T5Stack, run: T5Run, piece: int) -> None:
    """A piece of work: x, normed -> found."""
    done, item = 0, take(run.counters.ctypes.data, piece)
    while item < len(run.x):
        norm(run.x[item : item + 1], model.last_norm, model.epsilon, run.found[item : item + 1])
        done, item = done + 1, take(run.counters.ctypes.data, piece)
    finish(run.counters.ctypes.data, piece, done, len(run.x))


@compiled
def _layers(model: T5Stack, run: T5Run, piece: int) -> None:
    """Tokens -> found and logits; pieces of work are counted from ``piece`` on."""
    tokens, hidden, threads = len(run.tokens), model.hidden, run.threads
    widest = PANEL * max(_step(hidden // PANEL, threads), 2 * _step(model.inner // PANEL, threads))
    normed = np.empty((tokens, hidden), np.float32)
    temp = np.empty((tokens, max(widest, model.padded)), np.float32)
    scores = np.empty(max(run.own.capacity, run.cross.capacity), np.float32)
    most = max(hidden, run.mixed.shape[1], model.inner)
    room = input_room(model.half, tokens, most)
    around = product_input(model.half, normed, room)
    mixed = product_input(model.half, run.mixed, room)
    between = product_input(model.half, run.between, room)
    _embed(model, run, piece)
    piece += 1
    for layer in range(model.layers):
        attention(model, run, layer, piece, around, temp, scores, True)
        _add(model, run, layer, piece + 1, OUT, mixed, temp)
        if model.crosses:
            attention(model, run, layer, piece + 2, around, temp, scores, False)
            _add(model, run, layer, piece + 3, CROSS_OUT, mixed, temp)
        _feed(model, run, layer, piece + 4, around, temp)
        _add(model, run, layer, piece + 5, OUTER, between, temp)
        piece += PIECES
    _end(model, run, piece)
    if len(run.logits):
        found, one = product_input(model.half, run.found, room), np.float32(1)
        counters = run.counters.ctypes.data
        write_logits(
            found, model.output, model.last_powers, run.logits, counters, piece + 1, threads, one, np.float32(0)
        )
    end_products(around)


@compiled
def _choose(run: T5Run, guess: int, piece: int) -> None:
    """A piece of work: logits behind the last token of each row -> its next guess."""
    counters, rows = run.counters.ctypes.data, len(run.rows)
    done, item = 0, take(counters, piece)
    while item < rows:
        logits, best = run.logits[run.firsts[item + 1] - 1], 0
        for token in range(1, run.choosable):
            if logits[token] > logits[best]:
                best = token
        run.guesses[guess, item] = best
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, rows)


@compiled
def _behind(run: T5Run, guess: int) -> T5Run:
    """A run of that guess alone, of every row, one position further on for each guess."""
    rows = len(run.rows)
    at, firsts = np.empty(rows, np.int64), np.empty(rows + 1, np.int64)
    for row in range(rows):
        at[row] = run.at[run.firsts[row + 1] - 1] + guess + 1
    for row in range(rows + 1):
        firsts[row] = row
    return T5Run(
        run.guesses[guess], firsts, run.rows, at, at + 1, run.bias, run.own, run.cross, run.sources,
        run.x[:rows], run.found[:rows], run.logits[:rows], run.kept, run.states, run.mixed[:rows],
        run.between[:rows], run.guesses, run.choosable, run.counters, run.threads,
    )  # fmt: skip


@on_disk
def t5_layers(model: T5Stack, run: T5Run) -> None:
    """Tokens -> found and logits, with keys, values and states written on the way; then guesses, if there are to be
    some. Every thread calls this with the same arguments.
    """
    model, run = unowned(model), unowned(run)
    pieces = PIECES * model.layers + BESIDE
    for guess in range(max(1, len(run.guesses))):
        now = run if guess == 0 else _behind(run, guess - 1)
        _layers(model, now, pieces * guess)
        if len(run.guesses):
            _choose(now, guess, pieces * (guess + 1) - 1)


@on_disk
def t5_cross(
    model: T5Stack,
    places: Any,
    powers: Any,
    read: Any,
    firsts: Any,
    rows: Any,
    cross: T5Memory,
    work: Any,
) -> None:
    """Keys and values of sources for every layer of a decoder, into its buffers.

    ``places`` [L] are addresses of matrices, keys before values; ``read`` [N, hidden] is what the encoder gave for the
    sources, one behind the other from ``firsts`` [R + 1] on, and ``rows`` [R] are those of the buffers they go to.
    """
    tokens, panels, counters = len(read), model.padded // PANEL, work.ctypes.data
    temp = np.empty((tokens, model.padded), np.float32)
    room = input_room(model.half, tokens, model.hidden)
    given = product_input(model.half, read, room)
    items, converted = 2 * model.heads * len(places), -1
    done, item = 0, take(counters, 0)
    while item < items:
        layer, head = item // (2 * model.heads), item % (2 * model.heads)
        if converted != layer:
            convert_input(given, powers[layer])
            converted = layer
        multiply(given, places[layer], panels * head, panels, temp)
        address = cross.keys[layer] if head < model.heads else cross.values[layer]
        for row in range(len(rows)):
            kept = buffer(model, cross, address, rows[row], head % model.heads)
            for token in range(firsts[row], firsts[row + 1]):
                for j in range(model.depth):
                    kept[token - firsts[row], j] = temp[token, j]
        done, item = done + 1, take(counters, 0)
    finish(counters, 0, done, items)
    end_products(given)
