"""What runs a model: one protocol for transformers and numba, under one session (``CachedSession``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray
from torch import Tensor

from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import Choose, Shape, Source
from outrider.core.token_tree import TreePlaces


@dataclass(frozen=True)
class Wanted:
    """What a run is for. An engine need not compute anything else."""

    tokens: range | None = None  # of each row, those whose logits and hidden states are wanted; None: all
    logits: bool = True  # False: hidden states only, as in prefill
    states: tuple[int, ...] = ()  # layers whose outputs are wanted: 0 the embeddings, k layer k, -1 the last, normed
    rows: Tensor | None = None  # whose results are read, ascending; None: all. Those of others may be zeros
    tree: TreePlaces | None = None
    """The tokens of the only row are a root and the nodes of this tree, at the positions they have on their paths. Keys
    and values are written one behind the other all the same. For engines alone whose facts say ``runs_trees``."""
    filled_only: bool = False  # attention may read only the filled part of the KV cache: bits need not be constant


@dataclass(frozen=True)
class Result:
    """What a run gave, for the n tokens of each row that were wanted. Nothing is written into it again: a session may
    read it after further runs."""

    logits: Tensor | None  # [B, n, V]; None: not wanted
    hidden: Tensor | None  # [B, n, size]: what the output layer read; None: the model shows none
    states: Tensor | None  # [B, w, L, size], of all tokens of the run; None: not wanted


class Engine(Protocol):
    """Runs tokens at positions. Threads may share it: whatever a run changes is in the cache."""

    trims_prefill: bool
    """Where bits allow it, prefill runs are as long as prompts and hold several rows; False: always a whole chunk."""

    prefill_tokens: int
    """Tokens of such a run that keep the device busy: more gain nothing."""

    @property
    def facts(self) -> ModelFacts:
        """What the engine knows of its model."""

    def allocate(self, rows: int, shape: Shape) -> Any:
        """A KV cache, empty, in the form this engine reads: ``Buffers`` or a kind of it."""

    def run(self, tokens: Tensor, positions: Tensor, cache: Any, wanted: Wanted) -> Result:
        """Run tokens [B, w] at positions [B, w]: their keys and values are written, and attention reads the cache."""

    def encode(self, sources: Mapping[int, Source], cache: Any) -> None:
        """Run the encoder over the sources of some rows, and keep what the decoder reads of them in the cache."""


@runtime_checkable
class GreedyEngine(Engine, Protocol):
    """An engine that writes a few tokens by itself, as a draft model does."""

    def run_greedily(self, pending: Pending, cache: Any, guesses: int, choosable: int) -> NDArray[Any]:
        """Run the pending tokens of some rows, then the likeliest token behind them, and so on -> guesses [R, G].

        The last guess is not run. ``choosable``: tokens that may be guessed, the first ones.
        """

    def run_chosen(self, pending: Pending, cache: Any, guesses: int, choose: Choose) -> NDArray[Any]:
        """Run the pending tokens of some rows, then the token that ``choose`` takes behind them, and so on -> guesses
        [R, G]. The last guess is not run."""


@dataclass(frozen=True)
class Pending:
    """Tokens of R rows that are to be run, any number of each, on a CPU."""

    rows: NDArray[Any]  # [R], ascending
    firsts: NDArray[Any]  # [R + 1]: where the tokens of each row begin among all, and the end; at least one each
    tokens: NDArray[Any]  # [N]: row after row
    positions: NDArray[Any]  # [N]
