"""The frequencies of rotary positions, as transformers defines them, without its model classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outrider.models.engine.sizes import Sizes
from outrider.models.positions import rotation_settings

NO_ROTATION = "none"
"""Stands for layers without rotary positions: all their frequencies are zero."""


def frequencies(config: Any, kind: str = "", long: bool = False) -> tuple[Tensor, float]:
    """Radians per position [rotary / 2], and what cosines and sines are multiplied by.

    ``kind``: of layers, where those of different types have rotary positions of their own. ``long``: by the long
    factors of longrope, not by its short ones.
    """
    sizes = Sizes.of(config)
    if kind == NO_ROTATION:
        return torch.zeros(sizes.rotary // 2), 1.0
    settings = rotation_settings(config)[kind]
    if settings["rope_type"] != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        options: dict[str, Any] = {"layer_type": kind} if kind else {}
        if long and settings["rope_type"] == "longrope":
            options["seq_len"] = settings["original_max_position_embeddings"] + 1
        found, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, **options)
        return found, float(scale)
    steps = torch.arange(0, sizes.rotary, 2, dtype=torch.float32) / sizes.rotary
    return 1.0 / (settings["rope_theta"] ** steps), 1.0


def kinds_of_layers(config: Any) -> list[str]:
    """Which rotary positions each layer has: names for ``frequencies``."""
    sizes = Sizes.of(config)
    by_type = "" not in rotation_settings(config)
    kinds = list(config.layer_types) if by_type else [""] * sizes.layers
    return [kind if turned else NO_ROTATION for kind, turned in zip(kinds, sizes.rotated, strict=True)]
