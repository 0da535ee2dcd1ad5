"""Additive attention masks over a KV cache whose rows are at positions of their own."""

from __future__ import annotations

import torch
from torch import Tensor

Windows = dict[str, int | None] | int | None
"""How far back attention looks: None (all), one window for all layers, or one per named layer type."""


def causal(positions: Tensor, slots: Tensor, windows: Windows, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """Masks [B, 1, w, C] for tokens at positions [B, w] over slots [C]; by name where layers differ."""
    if isinstance(windows, dict):
        return {name: _causal(positions, slots, window, dtype) for name, window in windows.items()}
    return _causal(positions, slots, windows, dtype)


def _causal(positions: Tensor, slots: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    query = positions[:, None, :, None]
    visible = slots <= query
    if window is not None:
        visible = visible & (slots > query - window)
    return additive(~visible, dtype)


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a position may look, the lowest number where it is hidden.

    Never -inf, so that a padding row with nothing to look at gives garbage rather than NaN.
    """
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)
