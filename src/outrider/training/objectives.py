"""What a draft is trained to do, as functions of its logits and the target's probabilities.

All take logits [..., N] over the tokens the draft can write and the target's probabilities p [..., N] of those
tokens (their sum may be below one: the rest lies outside the draft's vocabulary), and return a loss per position.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(draft logits [..., N], p [..., N], index of the text's next token in N, -1 if outside [...]) -> loss [...]."""


def _fine(logits: Tensor) -> torch.dtype:
    """Sums over a vocabulary need float32 at least."""
    return torch.promote_types(logits.dtype, torch.float32)


def kl(logits: Tensor, p: Tensor, token: Tensor) -> Tensor:
    """Soft targets: KL(p || q) up to the entropy of p, which does not depend on the draft."""
    return -(p * logits.log_softmax(-1, dtype=_fine(logits))).sum(-1)


def tv(logits: Tensor, p: Tensor, token: Tensor) -> Tensor:
    """Total variation, 1 - sum-min(p, q) = 1 - beta: the acceptance rate itself (Theorem 3.5), optimised directly."""
    return 1 - torch.minimum(p, logits.softmax(-1, dtype=_fine(logits))).sum(-1)


def ce(logits: Tensor, p: Tensor, token: Tensor) -> Tensor:
    """Plain cross-entropy on the text's own next token; positions outside the vocabulary count nothing."""
    chosen = logits.log_softmax(-1, dtype=_fine(logits)).gather(-1, token.clamp(min=0)[..., None])[..., 0]
    return torch.where(token >= 0, -chosen, torch.zeros_like(chosen))


@cache
def fused(objective: Objective) -> Objective:
    """The same in one pass over the vocabulary, forwards and backwards: for GPUs, where it is most of the traffic."""
    return torch.compile(objective)


OBJECTIVES: dict[str, Objective] = {"kl": kl, "tv": tv, "ce": ce}


def objective_at(name: str, share: float) -> Objective:
    """The objective when this share of the training is done: "kl+kl+tv" is kl for two thirds, then tv."""
    parts = name.split("+")
    return OBJECTIVES[parts[min(len(parts) - 1, int(share * len(parts)))]]


def known(name: str) -> bool:
    return all(part in OBJECTIVES for part in name.split("+"))
