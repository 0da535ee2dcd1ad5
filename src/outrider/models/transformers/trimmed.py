"""A small model over the target's most frequent tokens, wrapped as a model over the target's whole vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.protocols import Shape, Source
from outrider.errors import BadOption
from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.engine_protocol import Engine, Result, Wanted
from outrider.models.transformers.engine import TransformersEngine
from outrider.models.transformers.model import HuggingFaceModel


class TrimmedEngine:
    """Maps the target's token ids to the small model's on the way in, and its logits back on the way out."""

    def __init__(self, inner: TransformersEngine, tokens: Tensor, vocab_size: int) -> None:
        device = inner.facts.device
        self.inner, self.facts = inner, replace(inner.facts, vocab_size=vocab_size)
        self.trims_prefill, self.prefill_tokens = inner.trims_prefill, inner.prefill_tokens
        self.tokens = tokens.to(device)  # [N] ids of the target
        self.index = torch.full((vocab_size,), len(tokens), dtype=torch.int64, device=device)
        self.index[self.tokens] = torch.arange(len(tokens), device=device)

    def allocate(self, rows: int, shape: Shape) -> Any:
        return self.inner.allocate(rows, shape)

    def run(self, tokens: Tensor, positions: Tensor, cache: Any, wanted: Wanted) -> Result:
        found = self.inner.run(self.index[tokens], positions, cache, wanted)
        if found.logits is None:
            return found
        few = found.logits[..., : len(self.tokens)]
        full = few.new_full((*few.shape[:-1], self.facts.vocab_size), -torch.inf)
        full[..., self.tokens] = few
        return replace(found, logits=full)

    def encode(self, sources: Mapping[int, Source], cache: Any) -> None:
        self.inner.encode({row: self._own(source) for row, source in sources.items()}, cache)

    def _own(self, source: Source) -> list[int]:
        if isinstance(source, Tensor):  # the target's encoder speaks to the target's decoder only
            raise BadOption("a draft of its own cannot read the target's encoder output; give token ids as source")
        own: list[int] = self.index[torch.tensor(list(source), device=self.index.device)].tolist()
        return own


class TrimmedModel(CheckpointModel):
    """A small model whose sessions hold the target's ids throughout; only what goes through it is translated."""

    def __init__(self, inner: HuggingFaceModel, tokens: Tensor, vocab_size: int) -> None:
        self.inner, self.config = inner, inner.config
        self.engine: Engine = TrimmedEngine(inner.engine, tokens, vocab_size)
        self.facts = self.engine.facts

    @property
    def generation_config(self) -> Any:
        return self.inner.generation_config

    @property
    def embedding(self) -> EmbeddingTable:
        return self.inner.embedding

    @property
    def unembedding(self) -> EmbeddingTable:
        return self.inner.unembedding


def save(model: Any, tokens: Tensor, folder: Path, config: dict[str, Any]) -> None:
    """A trimmed model as safetensors and its token list."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokens.json").write_text(json.dumps(tokens.tolist()), encoding="utf-8")
    (folder / "outrider_draft.json").write_text(
        json.dumps({"kind": "model", **config}, indent=2) + "\n", encoding="utf-8"
    )


def load(folder: Path, target: CheckpointModel) -> TrimmedModel:
    """A trimmed model beside its target: same device and dtype."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if target.encoder_decoder else AutoModelForCausalLM
    inner = kind.from_pretrained(folder, dtype=target.dtype, use_safetensors=True).to(target.device)
    tokens = torch.tensor(json.loads((folder / "tokens.json").read_text(encoding="utf-8")))
    model = HuggingFaceModel(inner)
    model.fuse()  # where the device and the family allow; else it runs through its own layers
    model.find_batch_invariance()
    return TrimmedModel(model, tokens, target.vocab_size)
