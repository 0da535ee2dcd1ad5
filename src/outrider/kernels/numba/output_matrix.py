"""The output matrix of a model as a piece of work that all threads share, compiled by numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.kernels.numba.arrays import aligned_lines
from outrider.kernels.numba.layer_math import finish, take
from outrider.kernels.numba.products import ProductInput, convert_input, multiply
from outrider.kernels.numba.tiles import PANEL, compiled
from outrider.kernels.numba.vector_math import cap


@compiled
def write_logits(
    given: ProductInput, weights: int, powers: Any, logits: Any, counters: int, piece: int, threads: int,
    scale: float, most: float,
) -> None:  # fmt: skip
    """Hidden states times the output matrix -> logits [N, V], times a scale, and bounded by ``most`` unless it is 0."""
    rows, vocabulary = logits.shape
    panels = (vocabulary + PANEL - 1) // PANEL
    step = max(1, panels // (32 * threads))
    items = (panels + step - 1) // step
    temp = aligned_lines(rows, PANEL * (step + 1), np.float32)
    done, item = 0, take(counters, piece)
    if item < items:
        convert_input(given, powers)
    while item < items:
        first, count = item * step, min(step, panels - item * step)
        multiply(given, weights, first, count, temp)
        if scale != 1 or most > 0:
            _scale(temp, count, scale, most)
        end = min(vocabulary, PANEL * (first + count))
        for row in range(rows):
            logits[row, PANEL * first : end] = temp[row, : end - PANEL * first]
        done, item = done + 1, take(counters, piece)
    finish(counters, piece, done, items)


@compiled
def _scale(logits: Any, panels: int, scale: float, most: float) -> None:
    for row in range(len(logits)):
        for j in range(PANEL * panels):
            logits[row, j] *= scale
        if most > 0:
            for panel in range(panels):
                cap(logits[row, PANEL * panel :].ctypes.data, most)
