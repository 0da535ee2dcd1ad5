"""Mixtures of experts whose bits depend on a token alone.

transformers multiplies the matrices of an expert with all tokens of a run that are routed to it. How many these are
depends on the tokens beside: on guesses, on padding, on other rows. So do the bits. In a run that logits are read from,
every token is multiplied by itself instead, some tokens at a time and always as many. Prompts are prefilled alone and
in chunks of one size, with or without guesses: there transformers' own products stay, which read each expert once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from outrider.models.settings import offers

_PAIRS = 16
"""Pairs of a token and an expert whose matrices are gathered at a time: what that takes stays small."""

_alone: ContextVar[bool] = ContextVar("outrider_tokens_alone", default=False)


@contextmanager
def tokens_alone() -> Iterator[None]:
    """Runs within have bits that depend on each token alone."""
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def are_experts(module: Any) -> bool:
    """Whether a module has the matrices of several experts, and transformers' ways to multiply with them."""
    return offers(module, "_apply_gate") and offers(module, "down_proj") and offers(module, "num_experts")


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Tokens [N, size] through the experts [N, k] chosen for each -> [N, size]."""
    if not _alone.get():
        return type(self).forward(self, hidden_states, top_k_index, top_k_weights)  # type: ignore[no-any-return]
    from transformers.integrations.moe import batched_mm_experts_forward

    count, each = len(hidden_states), max(1, _PAIRS // top_k_index.shape[1])
    filled = [
        torch.split(torch.cat([given, given.new_zeros((-count % each, given.shape[1]))]), each)
        for given in (hidden_states, top_k_index, top_k_weights)
    ]
    found = [batched_mm_experts_forward(self, *some) for some in zip(*filled, strict=True)]
    return torch.cat(found)[:count]
