"""The frequencies of rotary positions, as transformers defines them, without its model classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outrider.models.engine.sizes import Sizes


def frequencies(config: Any) -> tuple[Tensor, float]:
    """Radians per position [depth / 2], and what cosines and sines are multiplied by."""
    settings = config.rope_parameters
    if settings["rope_type"] != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        found, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config)
        return found, float(scale)
    depth = Sizes.of(config).depth
    return 1.0 / (settings["rope_theta"] ** (torch.arange(0, depth, 2, dtype=torch.float32) / depth)), 1.0
