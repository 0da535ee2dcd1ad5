"""A small model that speaks only the target's most frequent tokens, as a model over the target's whole vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, LlamaForCausalLM, T5Config
from transformers import T5ForConditionalGeneration as T5

from outrider.errors import require
from outrider.models.huggingface import HuggingFaceModel, HuggingFaceSession
from outrider.types import Shape


class TrimmedModel:
    """Maps the target's token ids to the small model's on the way in, and its logits back on the way out."""

    def __init__(self, inner: HuggingFaceModel, tokens: Tensor, vocab_size: int) -> None:
        self.inner, self.vocab_size = inner, vocab_size
        self.tokens = tokens.to(inner.device)  # [N] ids of the target
        self.index = torch.full((vocab_size,), len(tokens), dtype=torch.int64, device=inner.device)
        self.index[self.tokens] = torch.arange(len(tokens), device=inner.device)
        self.encoder_decoder = inner.encoder_decoder

    @property
    def device(self) -> torch.device:
        return torch.device(self.inner.device)

    @property
    def max_length(self) -> int | None:
        return self.inner.max_length

    def start(self, rows: int, shape: Shape) -> TrimmedSession:
        return TrimmedSession(self, rows, shape)


class TrimmedSession(HuggingFaceSession):
    """The context holds the target's ids throughout; only what goes through the model is translated."""

    def __init__(self, model: TrimmedModel, rows: int, shape: Shape) -> None:
        super().__init__(model.inner, rows, shape)
        self.trimmed = model
        self.vocab_size = model.vocab_size

    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        logits, hidden = super()._feed(self.trimmed.index[tokens], positions)
        full = torch.full((*logits.shape[:-1], self.vocab_size), -torch.inf, dtype=logits.dtype, device=logits.device)
        full[..., self.trimmed.tokens] = logits[..., : len(self.trimmed.tokens)]
        return full, hidden

    def _prefill(self, row: int, tokens: Tensor, positions: Tensor, last: int) -> Tensor | None:
        return super()._prefill(row, self.trimmed.index[tokens], positions, last)


@dataclass(frozen=True)
class Size:
    """The size of a small model: the paper's 6M draft is Size(256, 1024, 2, 4)."""

    dim: int = 256
    inner: int = 1024
    layers: int = 2
    heads: int = 4

    @staticmethod
    def parse(text: str) -> Size:
        """From "256x1024x2x4": width, inner width, layers, heads."""
        parts = text.lower().split("x")
        good = len(parts) == 4 and all(p.isdigit() and int(p) > 0 for p in parts)
        require(good, f"size must look like 256x1024x2x4 (width, inner width, layers, heads), got {text!r}")
        size = Size(*(int(p) for p in parts))
        require(size.dim % size.heads == 0, f"size: width {size.dim} must be a multiple of {size.heads} heads")
        return size


def build(size: Size, vocab: int, target: HuggingFaceModel) -> Any:
    """A fresh small model of the target's kind: a Llama decoder, or a T5 for an encoder-decoder target."""
    if target.encoder_decoder:
        ids = target.model.config
        return T5(
            T5Config(
                vocab_size=vocab, d_model=size.dim, d_ff=size.inner, num_layers=size.layers, num_heads=size.heads,
                d_kv=size.dim // size.heads, feed_forward_proj="gated-gelu", dropout_rate=0.0,
                decoder_start_token_id=ids.decoder_start_token_id, pad_token_id=ids.pad_token_id,
                eos_token_id=ids.eos_token_id,
            )
        )  # fmt: skip
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab, hidden_size=size.dim, intermediate_size=size.inner, num_hidden_layers=size.layers,
            num_attention_heads=size.heads, num_key_value_heads=size.heads, tie_word_embeddings=True,
            max_position_embeddings=target.max_length or 4096, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip


def sliced(target: HuggingFaceModel, tokens: Tensor, layers: Sequence[int]) -> Any:
    """A draft made of the target's own weights: chosen layers, and embeddings of the chosen tokens."""
    config = target.model.config.__class__.from_dict(target.model.config.to_dict())
    require(hasattr(config, "num_hidden_layers"), "slices can be taken of decoder-only targets only")
    config.num_hidden_layers, config.vocab_size = len(layers), len(tokens) + 1
    model = type(target.model)(config)
    state = target.model.state_dict()
    kept = {}
    for name, value in state.items():
        parts = name.split(".")
        number = next((int(p) for p in parts if p.isdigit()), None)
        if number is None:
            rows = value.shape[0] == target.vocab_size
            kept[name] = torch.cat([value[tokens], value[tokens].mean(0, keepdim=True)]) if rows else value
        elif number in layers:
            renamed = [str(list(layers).index(number)) if p == str(number) else p for p in parts]
            kept[".".join(renamed)] = value
    model.load_state_dict({k: v.float() for k, v in kept.items()}, strict=False)
    return model.float()


def save(model: Any, tokens: Tensor, folder: Path, config: dict[str, Any]) -> None:
    """A trimmed model as safetensors and its token list."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokens.json").write_text(json.dumps(tokens.tolist()), encoding="utf-8")
    (folder / "outrider_draft.json").write_text(
        json.dumps({"kind": "model", **config}, indent=2) + "\n", encoding="utf-8"
    )


def load(folder: Path, target: HuggingFaceModel) -> TrimmedModel:
    """A trimmed model beside its target: same device and dtype."""
    kind = AutoModelForSeq2SeqLM if target.encoder_decoder else AutoModelForCausalLM
    inner = kind.from_pretrained(folder, dtype=target.dtype, use_safetensors=True).to(target.device)
    tokens = torch.tensor(json.loads((folder / "tokens.json").read_text(encoding="utf-8")))
    return TrimmedModel(HuggingFaceModel(inner), tokens, target.vocab_size)
