"""Top-p filtering by a search for the smallest logit that is kept, without sorting; see ``core/top_p.py``.

A float's bits, read as a whole number, are in the order of the floats: so the search is one over whole numbers. Three
times the weights are added up by eleven bits of them, from the highest bits down, and the place is found where the
sum from the top reaches what is needed. Every pass is spread over the whole GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
_BITS = (22, 11, 0)  # where the three pieces of a key begin


@triton.jit
def _below(x, peak):
    """How far x is below the peak, counted in floats: whole numbers from 0 to 2**32 - 1."""
    x = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # there are two zeros
    peak = tl.where(peak == 0.0, 0.0, peak).to(tl.int32, bitcast=True)
    x = tl.where(x < 0, x ^ 0x7FFFFFFF, x).to(tl.int64)
    peak = tl.where(peak < 0, peak ^ 0x7FFFFFFF, peak).to(tl.int64)
    return tl.minimum(tl.maximum(peak - x, 0), 0xFFFFFFFF)  # within bounds whatever the numbers are


@triton.jit
def sums_kernel(logits, peaks, found, sums, size, BIT: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """Weights of the tokens whose higher bits were found, by their next eleven bits."""
    line = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + line * size + place, mask=place < size, other=-float("inf"))
    peak = tl.load(peaks + line)
    key = _below(x, peak)
    weight = (tl.exp(x - peak) * UNIT).to(tl.int64)
    counts = (place < size) & (weight > 0) & ((key >> BIT) >> 11 == tl.load(found + line))
    tl.atomic_add(sums + line * 2048 + ((key >> BIT) & 2047), weight, mask=counts, sem="relaxed")


@triton.jit
def pick_kernel(sums, found, needs):
    """Where the sums from the top reach the need: eleven bits more are found, and the rest of the need."""
    line = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, 2048)
    own = tl.load(sums + line * 2048 + place)
    reached = tl.cumsum(own, 0)
    need = tl.load(needs + line)
    here = tl.minimum(tl.sum((reached < need).to(tl.int64), 0), 2047)
    before = tl.sum(tl.where(place < here, own, 0), 0)
    tl.store(found + line, tl.load(found + line) * 2048 + here)
    tl.store(needs + line, need - before)


@triton.jit
def ties_kernel(logits, peaks, found, ties, size, BLOCK: tl.constexpr):
    """How many tokens of each block are equal to the least that stays."""
    line = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + line * size + place, mask=place < size, other=-float("inf"))
    tied = (place < size) & (_below(x, tl.load(peaks + line)) == tl.load(found + line))
    tl.store(ties + line * tl.num_programs(1) + tl.program_id(1), tl.sum(tied.to(tl.int32), 0))


@triton.jit
def cut_kernel(
    logits, peaks, found, needs, ties, out, size, UNIT: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    line = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + line * size + place, mask=place < size, other=-float("inf"))
    peak, last = tl.load(peaks + line), tl.load(found + line)
    key = _below(x, peak)
    tied = (place < size) & (key == last)
    each = tl.max(tl.where(tied, (tl.exp(x - peak) * UNIT).to(tl.int64), 0), 0)
    wanted = (tl.load(needs + line) + each - 1) // tl.maximum(each, 1)  # of the equal ones, the first
    block = tl.arange(0, BLOCKS)
    earlier = tl.load(ties + line * tl.num_programs(1) + block, mask=block < tl.program_id(1), other=0)
    stays = (key < last) | (tied & (tl.sum(earlier, 0) + tl.cumsum(tied.to(tl.int32), 0) <= wanted))
    tl.store(out + line * size + place, tl.where(stays, x, -float("inf")), mask=place < size)


def cut(logits: Tensor, unit: float, needed: Callable[[Tensor], Tensor]) -> Tensor:
    """Logits [..., V] in float32 with -inf for what top-p cuts.

    unit: the likeliest token's weight. needed: of the weight of all tokens, what those that stay must reach.
    """
    logits = logits.contiguous()
    size, device = logits.shape[-1], logits.device
    lines, blocks = logits.numel() // size, triton.cdiv(size, _BLOCK)
    peaks = logits.amax(-1)
    sums = torch.zeros((len(_BITS), lines, 2048), dtype=torch.int64, device=device)
    found = torch.zeros(lines, dtype=torch.int64, device=device)
    needs = found
    for step, bit in enumerate(_BITS):
        sums_kernel[(lines, blocks)](
            logits, peaks, found, sums[step], size, BIT=bit, UNIT=unit, BLOCK=_BLOCK, num_warps=4
        )
        needs = needed(sums[0].sum(-1)) if step == 0 else needs
        pick_kernel[(lines,)](sums[step], found, needs, num_warps=8)
    ties = torch.empty((lines, blocks), dtype=torch.int32, device=device)
    out = torch.empty_like(logits)
    ties_kernel[(lines, blocks)](logits, peaks, found, ties, size, BLOCK=_BLOCK, num_warps=4)
    cut_kernel[(lines, blocks)](
        logits, peaks, found, needs, ties, out, size,
        UNIT=unit, BLOCK=_BLOCK, BLOCKS=triton.next_power_of_2(blocks), num_warps=4,
    )  # fmt: skip
    return out
