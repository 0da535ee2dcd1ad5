"""Calls of transformers' ``generate``: by its own loop, and by Outrider's."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

import outrider
import tiny

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 10, 11], [33, 5, 33, 5, 33]]


def batch(family: str, rows: int = 3) -> dict[str, torch.Tensor]:
    """Prompts of different lengths; padding on the left, or for an encoder on the right."""
    longest = max(len(p) for p in PROMPTS[:rows])
    left = family in tiny.DECODER_ONLY
    ids, mask = [], []
    for prompt in PROMPTS[:rows]:
        gap = [0] * (longest - len(prompt))
        ids.append(gap + prompt if left else prompt + gap)
        mask.append(gap + [1] * len(prompt) if left else [1] * len(prompt) + gap)
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def alike(family: str) -> dict[str, torch.Tensor]:
    """Prompts of one length: no padding."""
    ids = torch.tensor([prompt[:3] for prompt in PROMPTS])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def plain(family: str, inputs: dict[str, Any] | None = None, **options: Any) -> list[list[int]]:
    """What transformers itself generates."""
    ids: torch.Tensor = tiny.build(family).generate(**(inputs or batch(family)), **options)
    return ids.tolist()


def through(family: str, inputs: dict[str, Any] | None = None, **options: Any) -> list[list[int]]:
    """The same call, by Outrider's loop."""
    ids: torch.Tensor = call(tiny.build(family), inputs or batch(family), **options)
    return ids.tolist()


def call(model: tf.PreTrainedModel, inputs: dict[str, Any], **options: Any) -> Any:
    return model.generate(**inputs, **options, custom_generate=outrider.transformers_generate)
