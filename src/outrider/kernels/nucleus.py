"""Top-p by searching for the least logit that stays, with no order made among the others; see ``nucleus.py``.

One program per distribution. A float's bits, read as a whole number, are in the order of the floats: so the search is
one over whole numbers, two bits closer with every pass over the logits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.nucleus import UNIT, needed

_BLOCK = 8192


@triton.jit
def _weight(x, peak, inside, UNIT: tl.constexpr):
    return tl.where(inside, (tl.exp(x - peak) * UNIT).to(tl.int64), 0)


@triton.jit
def _order(x):  # int64 keys in the order of float32 values
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # there are two zeros
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _total(logits, peaks, totals, size, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    x = tl.load(logits + line * size + place, mask=inside, other=-float("inf"))
    tl.atomic_add(totals + line, tl.sum(_weight(x, tl.load(peaks + line), inside, UNIT), 0))


@triton.jit
def _cut(logits, peaks, needs, out, size, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    row = logits + line * size
    peak, need = tl.load(peaks + line), tl.load(needs + line)
    place = tl.arange(0, BLOCK)
    # Keys from low on weigh ``need`` or more, keys above high weigh less.
    high = _order(peak)
    low = high * 0 - 2147483648
    while low < high:
        step = (high - low + 3) // 4
        one, two, three = low + step, low + 2 * step, low + 3 * step
        first, second, third = high * 0, high * 0, high * 0
        for start in range(0, size, BLOCK):
            inside = start + place < size
            x = tl.load(row + start + place, mask=inside, other=-float("inf"))
            key, weight = _order(x), _weight(x, peak, inside, UNIT)
            first += tl.sum(tl.where(key >= one, weight, 0), 0)
            second += tl.sum(tl.where(key >= two, weight, 0), 0)
            third += tl.sum(tl.where(key >= three, weight, 0), 0)
        quarters = (first >= need).to(tl.int64) + (second >= need).to(tl.int64) + (third >= need).to(tl.int64)
        low += quarters * step
        high = tl.minimum(high, low + step - 1)
    above, each = high * 0, high * 0
    for start in range(0, size, BLOCK):
        inside = start + place < size
        x = tl.load(row + start + place, mask=inside, other=-float("inf"))
        key, weight = _order(x), _weight(x, peak, inside, UNIT)
        above += tl.sum(tl.where(key > low, weight, 0), 0)
        each = tl.maximum(each, tl.max(tl.where(key == low, weight, 0), 0))
    wanted = (need - above + each - 1) // tl.maximum(each, 1)  # of the equal ones
    seen = high * 0
    for start in range(0, size, BLOCK):
        inside = start + place < size
        x = tl.load(row + start + place, mask=inside, other=-float("inf"))
        key = _order(x)
        tied = ((key == low) & inside).to(tl.int64)
        stays = (key > low) | ((tied > 0) & (seen + tl.cumsum(tied, 0) <= wanted))
        seen += tl.sum(tied, 0)
        tl.store(out + line * size + start + place, tl.where(stays, x, -float("inf")), mask=inside)


def cut(logits: Tensor, top_p: float) -> Tensor:
    """Logits [..., V] in float32 with -inf for what top_p cuts."""
    logits = logits.contiguous()
    size = logits.shape[-1]
    lines = logits.numel() // size
    peaks = logits.amax(-1)
    totals = torch.zeros(peaks.shape, dtype=torch.int64, device=logits.device)
    block = min(_BLOCK, triton.next_power_of_2(size))
    _total[(lines, triton.cdiv(size, block))](logits, peaks, totals, size, UNIT=UNIT, BLOCK=block, num_warps=8)
    out = torch.empty_like(logits)
    warps = max(1, min(32, block // 256))
    _cut[(lines,)](logits, peaks, needed(totals, top_p), out, size, UNIT=UNIT, BLOCK=block, num_warps=warps)
    return out
