"""Families that no test covers are compared with themselves when they are loaded, past their attention windows."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers as tf

from outrider.errors import ModelError
from outrider.models.transformers import families, selfcheck
from outrider.models.transformers.model import HuggingFaceModel

WINDOW = 24


def starcoder() -> tf.PreTrainedModel:
    """A family outside the tested ones, with a window wider than a short check can see."""
    torch.manual_seed(0)
    config = tf.Starcoder2Config(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, sliding_window=WINDOW, initializer_range=0.4,
    )  # fmt: skip
    assert config.model_type not in families.FAMILIES
    return tf.Starcoder2ForCausalLM(config)


def test_an_untested_family_with_a_window_loads() -> None:
    """Catches a check that refuses what is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HuggingFaceModel(starcoder())


def test_a_forgotten_window_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of nine tokens could not see a window of more: a model that ignores its window must be refused."""
    monkeypatch.setattr(families, "sliding_windows", lambda config: None)
    with pytest.raises(ModelError, match="logits off by"):
        HuggingFaceModel(starcoder())


def test_a_window_too_wide_to_check_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a check that leaves the window out in silence where it would take minutes."""
    monkeypatch.setattr(selfcheck, "AFFORDABLE", {"cpu": 1e5})
    with pytest.warns(UserWarning, match=f"windows of {WINDOW} tokens were not checked"):
        HuggingFaceModel(starcoder())
