"""Mixtures of experts run by torch: the bits of a token do not depend on the tokens beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

from outrider.models.transformers import families
from outrider.models.transformers.experts import are_experts, tokens_alone

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 160, "intermediate_size": 352, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip


def experts_of(top: int) -> tuple[Any, Any]:
    config = tf.MixtralConfig(**SIZES, num_local_experts=6, num_experts_per_tok=top)
    model = tf.MixtralForCausalLM(config).eval()
    return model, next(module for module in model.modules() if are_experts(module))


def routed(count: int, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, the experts of each, and their weights."""
    generator = torch.Generator().manual_seed(1)
    shares, chosen = torch.rand((count, 6), generator=generator).topk(top)
    return torch.randn((count, 160), generator=generator), chosen, shares


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_company_changes_no_bit(top: int, dtype: torch.dtype) -> None:
    """An expert's product had as many rows as tokens were routed to it: guesses changed bits before them."""
    model, experts = experts_of(top)
    experts.to(dtype)
    families.adapt(model)
    x, chosen, shares = routed(37, top)
    x, shares = x.to(dtype), shares.to(dtype)
    with tokens_alone():
        together = experts(x, chosen, shares)
        for some in (slice(0, 1), slice(5, 6), slice(0, 9), slice(3, 30)):
            assert torch.equal(experts(x[some], chosen[some], shares[some]), together[some])
        order = torch.randperm(37)
        assert torch.equal(experts(x[order], chosen[order], shares[order]), together[order])


@torch.no_grad()
def test_it_is_the_same_function_and_can_be_undone() -> None:
    """Catches shares that are lost, padding that is added, and a model that stays changed."""
    model, experts = experts_of(2)
    given = routed(21, 2)
    expected = experts(*given)
    undo = families.adapt(model)
    assert torch.equal(experts(*given), expected), "outside of decoding it is transformers' own"
    with tokens_alone():
        torch.testing.assert_close(experts(*given), expected, atol=1e-4, rtol=1e-4)
        undo()
        assert torch.equal(experts(*given), expected)
    assert not any("forward" in vars(module) for module in model.modules())


def test_other_models_have_none() -> None:
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES))
    assert not any(are_experts(module) for module in model.modules())
