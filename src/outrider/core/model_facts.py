"""What a language model declares about itself, in one record. Planning, decoding and reports read it from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from outrider.core.protocols import LanguageModel

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ModelFacts:
    """Everything about a model that others decide by. A default is what holds for a model that declares nothing."""

    vocab_size: int
    device: torch.device = CPU
    max_length: int | None = None  # tokens a sequence may have; None: unlimited
    dtype: torch.dtype = torch.float32  # of hidden states and of the KV cache
    engine: str = "torch"  # what runs it, for statistics
    compute_dtype: torch.dtype | None = None  # of its matrix products; None: ``dtype``
    weight_format: str | None = None  # what its weights are kept in; None: ``dtype``
    encoder_decoder: bool = False
    hidden_size: int | None = None  # of what the output layer reads; None: the model shows no hidden states
    layers: int | None = None  # whose states can be read; None: the model shows none
    batch_invariant: bool = False
    """A token's bits depend neither on the width of its run nor on other rows: runs may be as narrow as they can be."""
    capacity_invariant: bool = False
    """Nor do they depend on the capacity of the KV cache: requests of any length may share one."""
    runs_trees: bool = False
    """Sessions of one row run a tree of guesses, each with the bits it has where its path is the text."""
    width_costs: Mapping[int, float] | None = None
    """Cost of a run by its tokens, in runs of one token, where runs are as narrow as they can be; None: all alike.

    The same in every process: with a seed, planning by them gives the same text again. Clocks start from them.
    """
    slots: int = 8  # rows that run together where nobody says how many
    weights_read: int | None = None  # numbers in the matrices of a run, where reading them is what it costs
    longest: int | None = None  # what ``max_length`` may be where the model is loaded for longer texts

    @property
    def computes_in(self) -> str:
        """The dtype of the matrix products by name."""
        return dtype_name(self.dtype if self.compute_dtype is None else self.compute_dtype)

    @property
    def weights_in(self) -> str:
        """What weights are kept in by name: what a run reads from memory."""
        return self.weight_format or dtype_name(self.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as options spell it: float32."""
    return str(dtype).removeprefix("torch.")


@runtime_checkable
class DeclaresFacts(Protocol):
    """A model that declares its facts."""

    @property
    def facts(self) -> ModelFacts: ...


def facts_of(model: LanguageModel) -> ModelFacts:
    """The facts of any language model: those it declares, or the defaults around the three that every model has."""
    if isinstance(model, DeclaresFacts):
        return model.facts
    return ModelFacts(model.vocab_size, model.device, model.max_length)
