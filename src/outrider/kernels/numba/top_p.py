"""Top-p of one distribution, compiled by numba: what ``core/top_p.py`` keeps, to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from outrider.kernels.numba.code_cache import on_disk


@on_disk
def cut(logits: Any, chances: Any, peak: float, top_p: float, unit: float, per_logit: float, out: Any) -> None:
    """Logits [V] -> out [V], with -inf for what goes; ``chances`` [V] are exp(logits - peak).

    Weights are whole numbers, added up by bins of distance from the peak; the bin in which ``top_p`` is reached is put
    in order. ``out`` may not be ``logits``.
    """
    bins = 2048
    place, reached = np.empty(len(logits), np.int16), np.zeros(bins)
    for j in range(len(logits)):
        far = (np.float32(peak) - logits[j]) * np.float32(per_logit)
        place[j] = int(far) if far < np.float32(bins - 1) else bins - 1
        reached[place[j]] += math.floor(chances[j] * np.float32(unit))
    for b in range(1, bins):
        reached[b] += reached[b - 1]
    need = math.ceil(reached[bins - 1] * top_p)
    last = 0
    while last < bins - 1 and reached[last] < need:
        last += 1
    count = 0
    for j in range(len(logits)):
        out[j] = np.float32(-np.inf) if place[j] > last else logits[j]
        count += place[j] == last
    inside = np.empty(count, np.int64)
    values = np.empty(count, np.float32)
    count = 0
    for j in range(len(logits)):
        if place[j] == last:
            inside[count], values[count] = j, -logits[j]
            count += 1
    total = reached[last - 1] if last else 0.0
    for i in np.argsort(values, kind="mergesort"):  # stable: of equal ones the earlier comes first
        if total >= need:
            out[inside[i]] = np.float32(-np.inf)
        total += math.floor(chances[inside[i]] * np.float32(unit))
