"""A trained Llama made as large as another without changing what it computes: real acceptance at a real cost.

Width is padded with zeros: the new columns of the embeddings are zero and every projection leaves them zero, so the
residual stream is the old one followed by zeros. A norm then averages over more numbers; its gain and epsilon make
up for that exactly. New heads and inner units have output weights of zero, and so have whole new layers. All of it
is random otherwise and is computed like the rest: nothing is skipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.errors import ModelError, require


@dataclass(frozen=True)
class Larger:
    """The size to reach. Heads keep their dimension, since rotary positions depend on it."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int


EIGHT_BILLION = Larger(hidden=4096, inner=14336, layers=36, heads=64, kv_heads=16)
"""Heads of 64: as many numbers in queries, keys and values as 32 and 8 heads of 128. 36 layers make up for a smaller
vocabulary than the 8B models have."""


def inflate(model: Any, size: Larger, device: torch.device | None = None) -> LlamaForCausalLM:
    """A Llama of the larger size with the same logits, on ``device`` and in the model's own dtype."""
    old = model.config
    require(old.model_type == "llama", f"only Llama models can be inflated, got {old.model_type!r}", ModelError)
    _check(old, size)
    device = device or model.device
    with torch.device(device):
        large = LlamaForCausalLM._from_config(_config(old, size), dtype=model.dtype)
    large.requires_grad_(False)
    _Inflation(model, large.eval(), size).run()
    return large


def _check(old: LlamaConfig, size: Larger) -> None:
    group, wanted = old.num_attention_heads // old.num_key_value_heads, size.heads // size.kv_heads
    smaller = {
        "hidden": (old.hidden_size, size.hidden),
        "inner": (old.intermediate_size, size.inner),
        "layers": (old.num_hidden_layers, size.layers),
        "kv_heads": (old.num_key_value_heads, size.kv_heads),
        "heads per kv_head": (group, wanted),
    }
    for name, (has, asked) in smaller.items():
        require(asked >= has, f"{name} must be at least the model's own {has}, got {asked}", ModelError)
    require(size.heads % size.kv_heads == 0, f"heads must be a multiple of kv_heads, got {size.heads}", ModelError)
    require(size.hidden % size.heads == 0, f"hidden must be a multiple of heads, got {size.hidden}", ModelError)


def _config(old: LlamaConfig, size: Larger) -> LlamaConfig:
    values = old.to_dict() | {
        "hidden_size": size.hidden, "intermediate_size": size.inner, "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads, "head_dim": _head_size(old),
        "rms_norm_eps": old.rms_norm_eps * old.hidden_size / size.hidden, "tie_word_embeddings": False,
    }  # fmt: skip
    return LlamaConfig.from_dict(values)


def _head_size(config: LlamaConfig) -> int:
    return int(config.head_dim or config.hidden_size // config.num_attention_heads)


class _Inflation:
    """Old weights into their places in the large model, zeros where something new could reach the output."""

    def __init__(self, model: Any, large: LlamaForCausalLM, size: Larger) -> None:
        self.model, self.large = model, large
        old = model.config
        self.hidden, self.inner, self.head = old.hidden_size, old.intermediate_size, _head_size(old)
        group, wider = old.num_attention_heads // old.num_key_value_heads, size.heads // size.kv_heads
        # Query head h of key/value head k goes to the same place among the heads of the new k.
        heads = [h // group * wider + h % group for h in range(old.num_attention_heads)]
        self.queries = torch.cat([torch.arange(self.head) + self.head * h for h in heads])
        # The mean over more numbers is smaller by this, and so is the epsilon: the root of it goes into the gain.
        self.gain = math.sqrt(old.hidden_size / size.hidden)

    @torch.no_grad()
    def run(self) -> None:
        source, target = self.model.model, self.large.model
        target.embed_tokens.weight.zero_()[:, : self.hidden] = self._moved(source.embed_tokens.weight)
        self._norm(target.norm, source.norm)
        self._columns(self.large.lm_head, self.model.lm_head, self.hidden)
        for index, layer in enumerate(target.layers):
            if index < len(source.layers):
                self._layer(layer, source.layers[index])
            else:  # computed in full, adds nothing
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()

    def _layer(self, layer: Any, old: Any) -> None:
        self._norm(layer.input_layernorm, old.input_layernorm)
        self._norm(layer.post_attention_layernorm, old.post_attention_layernorm)
        new, own = layer.self_attn, old.self_attn
        rows = self.queries.to(new.q_proj.weight.device)
        new.q_proj.weight[rows] = self._wide(own.q_proj.weight, new.q_proj.weight.shape[1])
        for name in ("k_proj", "v_proj"):
            weight = getattr(own, name).weight
            getattr(new, name).weight[: weight.shape[0]] = self._wide(weight, new.q_proj.weight.shape[1])
        output = torch.zeros_like(new.o_proj.weight[: self.hidden])
        output[:, rows] = self._moved(own.o_proj.weight)
        new.o_proj.weight.zero_()[: self.hidden] = output
        for name in ("gate_proj", "up_proj"):
            weight = getattr(old.mlp, name).weight
            into = getattr(layer.mlp, name).weight
            into[: self.inner] = self._wide(weight, into.shape[1])
        layer.mlp.down_proj.weight.zero_()[: self.hidden, : self.inner] = self._moved(old.mlp.down_proj.weight)

    def _norm(self, new: Any, old: Any) -> None:
        gain = (old.weight.to(torch.float64) * self.gain).to(new.weight.dtype)
        new.weight[: self.hidden] = gain.to(new.weight.device)  # beyond it the gain meets zeros only

    def _columns(self, new: Any, old: Any, count: int) -> None:
        new.weight.zero_()[:, :count] = self._moved(old.weight)

    def _wide(self, weight: Tensor, width: int) -> Tensor:
        return torch.nn.functional.pad(self._moved(weight), (0, width - weight.shape[1]))

    def _moved(self, weight: Tensor) -> Tensor:
        return weight.to(self.large.device)


def describe(old: Any, large: Any) -> str:
    """One sentence for reports: what was inflated."""
    before, after = (_count(sum(p.numel() for p in model.parameters())) for model in (old, large))
    return (
        f"the target is a model of {before} parameters inflated to {after} by zero-padded width, extra heads and "
        "inner units and extra layers with output weights of zero: it computes the same function at the larger "
        "model's cost"
    )


def _count(number: int) -> str:
    for unit, size in (("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"
