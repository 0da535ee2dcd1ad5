"""A larger model that computes the same function: exactly, once rounding is out of the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import tiny
from outrider.bench.inflate import Larger, describe, inflate
from outrider.errors import ModelError

IDS = torch.randint(3, tiny.VOCAB, (2, 24), generator=torch.Generator().manual_seed(0))
SIZE = Larger(hidden=54, inner=80, layers=5, heads=9, kv_heads=3)
"""Everything grows: 32 columns, 64 inner units, 2 layers, 4 heads in groups of 2 over 2 key heads."""


@pytest.fixture
def exact_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' norm computes in float32 whatever it is given; this one keeps to what it is given."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


def small(**changes: Any) -> LlamaForCausalLM:
    """An epsilon as large as the activations, so that forgetting to make up for it would show."""
    settings = {**tiny._GROUPED, "rms_norm_eps": 0.3, **changes}
    model = LlamaForCausalLM._from_config(LlamaConfig(**settings), dtype=torch.float64).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def difference(model: LlamaForCausalLM, large: LlamaForCausalLM) -> float:
    with torch.no_grad():
        return float((model(IDS).logits - large(IDS).logits).abs().max())


@pytest.mark.parametrize(
    "size",
    [
        SIZE,
        replace(SIZE, hidden=32, heads=8, kv_heads=2),
        replace(SIZE, layers=2),
        Larger(32, 64, 2, 4, 2),
        replace(SIZE, hidden=56, heads=8, kv_heads=4),
    ],
    ids=["everything", "no width", "no layers", "nothing", "key heads"],
)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_the_small_models_own(size: Larger, tied: bool, exact_norm: None) -> None:
    model = small(tie_word_embeddings=tied)
    large = inflate(model, size)
    assert large.model.embed_tokens.weight.shape[1] == size.hidden and len(large.model.layers) == size.layers
    assert difference(model, large) < 1e-12


@pytest.mark.parametrize("part", ["epsilon", "gain", "new layer", "new head"])
def test_what_is_made_up_for_matters(part: str, exact_norm: None) -> None:
    """Each compensation by itself, undone: the logits must move, or the test above proves nothing."""
    model = small()
    large = inflate(model, SIZE)
    layer, new = large.model.layers[0], large.model.layers[-1]
    with torch.no_grad():
        if part == "epsilon":
            layer.input_layernorm.variance_epsilon = 0.3
        elif part == "gain":
            layer.post_attention_layernorm.weight[:32] = model.model.layers[0].post_attention_layernorm.weight
        elif part == "new layer":
            new.mlp.down_proj.weight.normal_()
        else:
            layer.self_attn.o_proj.weight[:32, -8:].normal_()
    assert difference(model, large) > 1e-3


def test_nothing_new_is_zero_where_it_costs_nothing() -> None:
    """New layers are computed like the others: zeros everywhere could be skipped by a clever kernel."""
    large = inflate(small(), SIZE)
    new = large.model.layers[-1]
    for projection in (new.self_attn.q_proj, new.self_attn.v_proj, new.mlp.gate_proj, new.mlp.up_proj):
        assert float(projection.weight.abs().mean()) > 1e-3


@pytest.mark.parametrize(
    ("size", "match"),
    [
        (replace(SIZE, hidden=16), "hidden must be at least the model's own 32, got 16"),
        (replace(SIZE, layers=1), "layers must be at least"),
        (replace(SIZE, heads=3), "heads per kv_head"),
        (replace(SIZE, heads=10), "multiple of kv_heads"),
        (replace(SIZE, hidden=56), "hidden must be a multiple of heads, got 56"),
    ],
)
def test_sizes_that_cannot_hold_the_model(size: Larger, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        inflate(small(), size)


def test_other_families_are_refused() -> None:
    with pytest.raises(ModelError, match="only Llama models can be inflated, got 'gpt2'"):
        inflate(tiny.build("gpt2"), SIZE)


def test_the_report_says_what_was_inflated() -> None:
    model = small()
    assert "inflated to" in describe(model, inflate(model, SIZE))
