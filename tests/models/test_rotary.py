"""Rotary positions without transformers' model classes: their very bits, for every kind that is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from outrider.models.engine.rotary import frequencies

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "dynamic": {"factor": 4.0},
}  # fmt: skip


@pytest.mark.parametrize("depth", [None, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_those_of_transformers(kind: str, depth: int | None) -> None:
    config = tf.LlamaConfig(
        hidden_size=96, num_attention_heads=4, max_position_embeddings=256, head_dim=depth,
        rope_parameters={"rope_type": kind, "rope_theta": 1e5, **KINDS[kind]},
    )  # fmt: skip
    positions = torch.tensor([[0, 1, 2, 77, 255]])
    theirs = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    found, scale = frequencies(config)
    angles = positions[..., None].float() * found
    for ours, expected in zip((angles.cos() * scale, angles.sin() * scale), theirs, strict=True):
        assert torch.equal(ours, expected[..., : ours.shape[-1]]) and ours.shape[-1] * 2 == expected.shape[-1]


@pytest.mark.parametrize("long", [False, True])
def test_both_lists_of_longrope(long: bool) -> None:
    """transformers' own for a run that reaches to the last position, and for one that ends before."""
    factors = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [3.0, 5.0, 7.0]}
    config = tf.Phi3Config(
        hidden_size=32, num_attention_heads=4, max_position_embeddings=256, original_max_position_embeddings=64,
        pad_token_id=0, rope_parameters={"rope_type": "longrope", "partial_rotary_factor": 0.75, **factors},
    )  # fmt: skip
    positions = torch.tensor([[0, 1, 2, 77, 255]]) if long else torch.tensor([[0, 1, 2, 63]])
    theirs = Phi3RotaryEmbedding(config)(torch.zeros(1), positions)
    found, scale = frequencies(config, long=long)
    angles = positions[..., None].float() * found
    for ours, expected in zip((angles.cos() * scale, angles.sin() * scale), theirs, strict=True):
        assert torch.equal(ours, expected[..., :3]) and expected.shape[-1] == 6
