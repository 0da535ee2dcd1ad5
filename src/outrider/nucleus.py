"""Top-p without sorting the vocabulary: the likeliest tokens that together reach it are few, or searched for.

Probabilities are counted as whole numbers, so that sums are exact: which tokens stay depends neither on the order of
summation nor on how many tokens were looked at, and so not on the rows beside.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider import kernels

UNIT = 2.0**30
"""The likeliest token's weight. A token weighs nothing below one unit; it is cut for any top_p below 1."""

_FIRST = 512
"""Tokens put in order at first, where asking whether they suffice costs nothing."""

asks = True
"""Whether a CPU may be asked; tests of recorded steps, which a GPU cannot ask, say no."""


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits [..., V] with -inf for every token before which, likeliest first, others already reach ``top_p``.

    Of equal logits the earlier token comes first.
    """
    device = logits.device
    if (
        kernels.run_on(device)
        and logits.dtype == torch.float32
        and kernels.proven("top-p", device, lambda: _try(device))
    ):
        from outrider.kernels.nucleus import cut

        return cut(logits, top_p)
    return in_order(logits, top_p)


def in_order(logits: Tensor, top_p: float) -> Tensor:
    """The same without a kernel: the likeliest tokens are put in order, a few at first where that can be asked."""
    may_ask = asks and logits.device.type == "cpu"
    weights = ((logits - logits.amax(-1, keepdim=True)).exp() * UNIT).to(torch.int64)  # [..., V]
    need = needed(weights.sum(-1, keepdim=True), top_p)  # [..., 1]
    size = logits.shape[-1]
    for count in (_FIRST, size) if may_ask and size > 4 * _FIRST else (size,):
        values, index = logits.topk(count, -1)  # [..., K], falling
        own = weights.gather(-1, index)
        reached = own.cumsum(-1)
        if count == size or bool((reached[..., -1:] >= need).all()):
            break
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


def _try(device: torch.device) -> bool:
    from outrider.kernels.nucleus import cut

    logits = torch.linspace(-9, 9, 3001, device=device).sin().round(decimals=2).mul(9).reshape(1, -1)  # with ties
    return torch.equal(cut(logits, 0.8), in_order(logits, 0.8))
