"""torch's attention on a CPU with at least two queries: a single one meets another kernel, and has other bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "outrider_two_queries"


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' ``sdpa``; a single query [B, H, 1, D] is run twice."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.shape[2] > 1:
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    bias = options.get("position_bias")
    if bias is not None:
        options["position_bias"] = bias.expand(-1, -1, 2, -1)
    mask = None if attention_mask is None else attention_mask.expand(-1, -1, 2, -1)
    options["is_causal"] = False  # the last token sees all that there is
    twice, _ = sdpa_attention_forward(module, torch.cat([query, query], 2), key, value, mask, **options)
    return twice[:, :1], None


def use(model: Any, wanted: bool) -> bool:
    """Let all parts of a transformers model attend this way, or by ``sdpa`` again; False: it attends in another way."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    configs = {id(part.config): part.config for part in (model, model.get_encoder(), model.get_decoder())}.values()
    if any(config._attn_implementation not in ("sdpa", NAME) for config in configs):
        return False
    for config in configs:
        config._attn_implementation = NAME if wanted else "sdpa"
    return True
