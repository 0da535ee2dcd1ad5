"""Llama models of known sizes with random weights, built on their device: for timing only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from outrider.errors import DeviceError
from outrider.models.transformers.model import HuggingFaceModel


@dataclass(frozen=True)
class LlamaSize:
    """The numbers that fix a Llama's shape."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    positions: int = 131072


SIZES = {
    "8b": LlamaSize(4096, 14336, 32, 32, 8, 128256),
    "1b": LlamaSize(2048, 8192, 16, 32, 8, 128256),
    "tiny": LlamaSize(64, 128, 2, 4, 2, 512, 4096),
    "tinier": LlamaSize(32, 64, 1, 4, 2, 512, 4096),
}


def config_of(size: LlamaSize, **more: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.inner, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, max_position_embeddings=size.positions,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **{"tie_word_embeddings": False, **more},
    )  # fmt: skip


def build(size: LlamaSize, device: torch.device, dtype: torch.dtype, seed: int = 0) -> HuggingFaceModel:
    """A Llama of that size whose weights follow from the seed."""
    torch.manual_seed(seed)
    try:
        with torch.device(device):
            model = LlamaForCausalLM._from_config(config_of(size), dtype=dtype)
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceError(
            f"no GPU memory for a model of {size}; free some, or ask for a smaller one with --size"
        ) from error
    model.generation_config = GenerationConfig(pad_token_id=0)
    return HuggingFaceModel(model.requires_grad_(False))


def weight_bytes(model: HuggingFaceModel) -> int:
    """Bytes of weights one run reads: everything but the input embeddings, of which it reads a few rows."""
    total = sum(p.numel() * p.element_size() for p in model.model.parameters())
    table = model.embedding
    tied = table.data_ptr() == model.unembedding.data_ptr()
    return int(total - (0 if tied else table.numel() * table.element_size()))
