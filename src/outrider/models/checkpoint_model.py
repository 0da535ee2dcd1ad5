"""A model of a checkpoint, whatever engine runs it: its facts, its settings, its embeddings and its sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import Shape
from outrider.models.cached_session import CachedSession
from outrider.models.engine_protocol import Engine
from outrider.models.tree_session import TreeSession


class CheckpointModel(ABC):
    """A loaded model of any engine, shared by sessions. It does not change once it is loaded."""

    facts: ModelFacts
    engine: Engine
    config: Any  # of the decoder, as transformers has it

    @property
    @abstractmethod
    def generation_config(self) -> Any:
        """How the checkpoint wants text to be generated, as transformers has it."""

    @property
    @abstractmethod
    def embedding(self) -> EmbeddingTable:
        """[V, size]: the input embeddings."""

    @property
    @abstractmethod
    def unembedding(self) -> EmbeddingTable:
        """[V, size]: the output layer, which turns ``hidden`` into logits."""

    def first_embeddings(self, count: int) -> Tensor:
        """[count, size]: the first input embeddings with the values they were saved with."""
        return self.embedding[:count]

    def start(self, rows: int, shape: Shape) -> CachedSession:
        return (TreeSession if rows == 1 and self.facts.runs_trees else CachedSession)(self, rows, shape)

    @property
    def vocab_size(self) -> int:
        return self.facts.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.facts.max_length

    @property
    def device(self) -> torch.device:
        return self.facts.device

    @property
    def dtype(self) -> torch.dtype:
        return self.facts.dtype

    @property
    def hidden_size(self) -> int | None:
        return self.facts.hidden_size

    @property
    def encoder_decoder(self) -> bool:
        return self.facts.encoder_decoder
