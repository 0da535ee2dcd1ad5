"""A small model that speaks only the target's most frequent tokens, as a model over the target's whole vocabulary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.core.protocols import Shape, Source
from outrider.errors import BadOption
from outrider.models.transformers.model import HuggingFaceModel, HuggingFaceSession


class TrimmedModel:
    """Maps the target's token ids to the small model's on the way in, and its logits back on the way out."""

    def __init__(self, inner: HuggingFaceModel, tokens: Tensor, vocab_size: int) -> None:
        self.inner = inner
        self.facts = replace(inner.facts, vocab_size=vocab_size)
        self.tokens = tokens.to(inner.device)  # [N] ids of the target
        self.index = torch.full((vocab_size,), len(tokens), dtype=torch.int64, device=inner.device)
        self.index[self.tokens] = torch.arange(len(tokens), device=inner.device)

    @property
    def vocab_size(self) -> int:
        return self.facts.vocab_size

    @property
    def device(self) -> torch.device:
        return self.facts.device

    @property
    def max_length(self) -> int | None:
        return self.facts.max_length

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

    def _encode(self, row: int, source: Source) -> None:
        if isinstance(source, Tensor):  # the target's encoder speaks to the target's decoder only
            raise BadOption("a draft of its own cannot read the target's encoder output; give token ids as source")
        super()._encode(row, self.trimmed.index[torch.tensor(list(source), device=self.context.device)].tolist())

    def _prefill(self, row: int, tokens: Tensor, positions: Tensor, last: int) -> Tensor | None:
        return super()._prefill(row, self.trimmed.index[tokens], positions, last)


def save(model: Any, tokens: Tensor, folder: Path, config: dict[str, Any]) -> None:
    """A trimmed model as safetensors and its token list."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokens.json").write_text(json.dumps(tokens.tolist()), encoding="utf-8")
    (folder / "outrider_draft.json").write_text(
        json.dumps({"kind": "model", **config}, indent=2) + "\n", encoding="utf-8"
    )


def load(folder: Path, target: HuggingFaceModel) -> TrimmedModel:
    """A trimmed model beside its target: same device and dtype."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if target.encoder_decoder else AutoModelForCausalLM
    inner = kind.from_pretrained(folder, dtype=target.dtype, use_safetensors=True).to(target.device)
    tokens = torch.tensor(json.loads((folder / "tokens.json").read_text(encoding="utf-8")))
    model = HuggingFaceModel(inner)
    model.fuse()  # where the device and the family allow; else it runs through its own layers
    return TrimmedModel(model, tokens, target.vocab_size)
