"""Top-p without sorting the vocabulary: the likeliest tokens that together reach it are few, or searched for.

Probabilities are counted as whole numbers, so that sums are exact: which tokens stay depends neither on the order of
summation nor on how many tokens were looked at, and so not on the rows beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core import host_sync
from outrider.core.numpy_ops import loaded_kernel
from outrider.kernels.triton import available

UNIT = 2.0**30
"""The likeliest token's weight. A token weighs nothing below one unit; it is cut for any top_p below 1."""

_SMALL = 2048
"""Vocabularies up to this size are put in order as a whole."""

_BINS = 2048
_PER_LOGIT = _BINS / 22
"""Bins by distance from the largest logit. 22 below it a token weighs nothing."""


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits [..., V] with -inf for every token before which, likeliest first, others already reach ``top_p``.

    Of equal logits the earlier token comes first.
    """
    device = logits.device
    runs = available.run_on(device) and logits.dtype == torch.float32
    if runs and available.proven("top-p", device, lambda: _try(device)):
        return _cut_on_gpu(logits, top_p)
    if host_sync.free(device) and logits.shape[-1] > _SMALL:
        return by_bins(logits, top_p)
    return in_order(logits, top_p)


def by_bins(logits: Tensor, top_p: float) -> Tensor:
    """The same on a CPU, for any shape of distribution: weights are added up by bins, one bin is put in order."""
    peak = logits.amax(-1, keepdim=True)
    if not bool(peak.isfinite().all()):
        return in_order(logits, top_p)
    compiled = loaded_kernel("top_p", "cut")
    if compiled is not None and logits.dtype == torch.float32:
        return _by_compiled_bins(logits, peak, top_p, compiled)
    below = peak - logits
    weights = below.neg().exp_().mul_(UNIT).floor_()  # whole numbers, as float64 adds them up without rounding
    bins = below.mul_(_PER_LOGIT).clamp_(max=_BINS - 1).to(torch.int64)
    values, weighed, binned = (x.detach().reshape(-1, logits.shape[-1]).numpy() for x in (logits, weights, bins))
    gone = np.stack([_cut(v, w, b, top_p) for v, w, b in zip(values, weighed, binned, strict=True)])
    return logits.masked_fill(torch.from_numpy(gone).reshape(logits.shape), -torch.inf)


def _by_compiled_bins(logits: Tensor, peak: Tensor, top_p: float, cut: Callable[..., None]) -> Tensor:
    """The same bits in a fraction of the time."""
    size, kept = logits.shape[-1], torch.empty_like(logits, memory_format=torch.contiguous_format)
    chances = (logits - peak).exp_()  # torch's own: another library's last bits would be others
    rows = (x.detach().reshape(-1, size).numpy() for x in (logits, chances, kept))
    for values, own, out, most in zip(*rows, peak.flatten().tolist(), strict=True):
        cut(values, own, most, top_p, UNIT, _PER_LOGIT, out)
    return kept


def _cut(logits: NDArray[Any], weights: NDArray[Any], bins: NDArray[Any], top_p: float) -> NDArray[Any]:
    """[V]: which tokens of one distribution go."""
    reached = np.bincount(bins, weights, _BINS).cumsum()
    need = math.ceil(reached[-1] * top_p)
    last = int(np.searchsorted(reached, need))  # the bin in which the sum gets there
    inside = np.flatnonzero(bins == last)
    inside = inside[np.argsort(-logits[inside], kind="stable")]  # likeliest first, of equal ones the earlier
    before = reached[last - 1] if last else 0.0
    gone = bins > last
    gone[inside[np.searchsorted(before + weights[inside].cumsum(dtype=np.float64), need) + 1 :]] = True
    return gone


def in_order(logits: Tensor, top_p: float) -> Tensor:
    """The same by putting all tokens in order, without asking a GPU anything."""
    may_ask = host_sync.free(logits.device)
    weights = ((logits - logits.amax(-1, keepdim=True)).exp() * UNIT).to(torch.int64)  # [..., V]
    need = needed(weights.sum(-1, keepdim=True), top_p)  # [..., 1]
    values, index = logits.topk(logits.shape[-1], -1)  # [..., V], falling
    own = weights.gather(-1, index)
    reached = own.cumsum(-1)
    kept = (reached - own < need).sum(-1, keepdim=True)  # [..., 1]
    least = values.gather(-1, (kept - 1).clamp(min=0))
    tied = logits == least
    wanted = kept - (values > least).sum(-1, keepdim=True)  # of the equal ones: as many as are needed, in order
    if may_ask and bool((tied.sum(-1, keepdim=True) <= wanted).all()):
        return logits.masked_fill(logits < least, -torch.inf)
    late = tied & (tied.cumsum(-1) > wanted)
    return logits.masked_fill((logits < least) | late, -torch.inf)


def needed(total: Tensor, top_p: float) -> Tensor:
    """The weight that reaches ``top_p`` of the total: whole numbers below 2**53, so float64 holds them."""
    return (total.to(torch.float64) * top_p).ceil().to(torch.int64)


def _cut_on_gpu(logits: Tensor, top_p: float) -> Tensor:
    from outrider.kernels.triton.top_p import cut

    return cut(logits, UNIT, lambda total: needed(total, top_p))


def _try(device: torch.device) -> bool:
    logits = torch.linspace(-9, 9, 3001, device=device).sin().round(decimals=2).mul(9).reshape(1, -1)  # with ties
    return torch.equal(_cut_on_gpu(logits, 0.8), in_order(logits, 0.8))
