"""A model run on a CPU by an engine of its own, from files that were prepared for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import facts_of
from outrider.core.protocols import LanguageModel
from outrider.errors import ModelError, require
from outrider.models import width_costs
from outrider.models.batch_invariance import (
    bits_do_not_depend_on_capacity,
    bits_do_not_depend_on_prefill,
    bits_do_not_depend_on_width,
    holds_beside_sources,
)
from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.engine.prepared import Prepared, PreparedEngine
from outrider.models.transformers import families
from outrider.runtime import cpu


class EngineModel(CheckpointModel):
    """A model run by one of ``BACKENDS``. Whether it is batch-invariant is tried out once and kept with its files.

    Where it is, runs have only the tokens they need, and plain and speculative decoding still agree to the bit.
    """

    engine: PreparedEngine

    def __init__(self, engine: PreparedEngine, config: Any, generation_config: Any) -> None:
        reason = families.supported(config)
        require(reason is None, f"a model of type {config.model_type!r} cannot be used: {reason}", ModelError)
        self.engine, self.config, self._generation_config = engine, config, generation_config
        self.facts = engine.facts
        known = engine.prepared.known
        conditions = f"{engine.name} {engine.kernels}, {engine.threads} threads, CPU {cpu.facts().identity}"
        self._conditions = conditions
        if self.facts.encoder_decoder:
            any_width = alike = known("any_width", conditions, lambda: holds_beside_sources(self, rows=16))
        else:
            any_width = known("any_width", conditions, lambda: bits_do_not_depend_on_width(self))
            any_width = any_width and self._any_prefill(conditions)
            alike = any_width and known("any_capacity", conditions, lambda: bits_do_not_depend_on_capacity(self))
        self.facts = replace(self.facts, runs_trees=self.facts.runs_trees and any_width)
        if any_width:
            self.facts = replace(self.facts, batch_invariant=True, capacity_invariant=alike)
            costs = known("width_costs", conditions, lambda: width_costs.measured(self), width_costs.NOMINAL)
            self.facts = replace(self.facts, width_costs={int(width): cost for width, cost in costs.items()})

    def _any_prefill(self, conditions: str) -> bool:
        """Whether prompts may be run together, in runs of any length."""
        facts, self.facts = self.facts, replace(self.facts, batch_invariant=True)  # as they would be run
        try:
            found: bool = self.engine.prepared.known(
                "any_prefill", conditions, lambda: bits_do_not_depend_on_prefill(self, rows=3, longest=80)
            )
        finally:
            self.facts = facts
        return found

    def kept_guess_cost(self, target: LanguageModel, find_out: Callable[[], float], otherwise: float) -> float:
        """What a guess costs where this model drafts for a target, found out once for both and kept: with a seed the
        text depends on how many guesses are made, and so on their cost."""
        theirs = facts_of(target)
        beside = f"{self._conditions}, beside {theirs.engine} reading {theirs.weights_read} weights"
        cost: float = self.prepared.known("sampled_guess_cost", beside, find_out, otherwise)
        return cost

    @property
    def prepared(self) -> Prepared:
        """The files it is run from."""
        return self.engine.prepared

    @property
    def generation_config(self) -> Any:
        return self._generation_config

    @property
    def embedding(self) -> EmbeddingTable:
        return self.engine.embedding

    @property
    def unembedding(self) -> EmbeddingTable:
        return self.engine.unembedding

    def first_embeddings(self, count: int) -> Tensor:
        """Kept beside the weights where the output layer, which is the embedding, has them in another form."""
        tied = self.engine.embedding is self.engine.unembedding
        if tied and "sample" in self.prepared.record["places"]:
            return self.prepared.tensor("sample")[:count]
        return super().first_embeddings(count)
