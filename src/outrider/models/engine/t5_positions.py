"""T5's relative positions: what is added to attention's scores by how far a key is behind its query."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def biases(weight: Tensor, reach: int, distance: int, *, both_ways: bool) -> Tensor:
    """weight [buckets, heads] -> [heads, 2 * reach + 1], for keys from ``reach`` positions before a query to as many
    behind it. ``both_ways``: an encoder's, which has buckets for either side."""
    found = weight[_bucket(torch.arange(-reach, reach + 1), weight.shape[0], distance, both_ways)]
    return found.t().contiguous()


def _bucket(offset: Tensor, buckets: int, distance: int, both_ways: bool) -> Tensor:
    """Half of the buckets are one position each; the others grow with the logarithm of the distance."""
    first = torch.zeros_like(offset)
    if both_ways:
        buckets //= 2
        first = (offset > 0) * buckets
        far = offset.abs()
    else:
        far = (-offset).clamp(min=0)
    exact = buckets // 2
    grown = torch.log(far.float() / exact) / math.log(distance / exact) * (buckets - exact)
    large = (exact + grown.clamp(min=0).to(torch.int64)).clamp(max=buckets - 1)
    return first + torch.where(far < exact, far, large)
