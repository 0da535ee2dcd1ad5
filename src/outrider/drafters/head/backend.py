"""What a draft session asks of the code that runs a head's layers: the protocol of all backends, and what they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from outrider.core.context import Context
from outrider.core.embedding_table import EmbeddingTable
from outrider.core.noise import Noise, counter_of
from outrider.core.numpy_ops import largest
from outrider.core.prices import Prices
from outrider.core.protocols import Session, Shape
from outrider.core.sampling import Sampling
from outrider.drafters.head.layers import Head


@dataclass(frozen=True)
class Texts:
    """What a head reads: the committed tokens of every row, the target's states behind them, and its embeddings."""

    context: Context
    target: Session
    embedding: EmbeddingTable  # [V, size]

    @property
    def states(self) -> Tensor:
        """[B, C, L, size]: outputs of the layers that the head reads, by position."""
        states = self.target.states
        assert states is not None
        return states

    @property
    def newest(self) -> Tensor:
        """[B]: the last position whose state and next token are both known."""
        return (self.context.lengths - 2).clamp(min=0)


class DraftTokens:
    """The N tokens that a head can draft, in the vocabulary's order: of equal logits the first one wins."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens  # [N]
        self.counter = counter_of(tokens)  # [N]: by which noise knows the tokens

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def likeliest(self, logits: Tensor) -> Tensor:
        """The token with the highest of logits [B, N] -> [B]."""
        return self.tokens[largest(logits)]

    def likeliest_few(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The so many highest of logits [B, N], highest first: log-probabilities and tokens [B, count]."""
        chances, places = logits.float().log_softmax(-1).topk(count)
        return chances, self.tokens[places]


class OutputRows(DraftTokens):
    """The rows of the target's output layer for the N tokens that a head can draft.

    Indexed by slices, as a matrix [N, size]: a copy of all of them takes more memory than the rest of the head.
    """

    def __init__(self, table: Any, tokens: Tensor) -> None:
        super().__init__(tokens)
        self._table = table
        self.shape = torch.Size((len(tokens), table.shape[1]))

    def __getitem__(self, some: slice) -> Tensor:
        return cast(Tensor, self._table[self.tokens[some]])

    @property
    def dtype(self) -> torch.dtype:
        return cast(torch.dtype, self._table.dtype)


@dataclass(frozen=True)
class DraftRequest:
    """A whole draft: how many guesses, how tokens are chosen, and when to stop early."""

    gamma: int
    sampling: Sampling
    noise: Noise
    at: Tensor  # [B, gamma + 1]: absolute positions
    floor: float  # the least chance that all guesses so far are right at which another is made
    prices: Prices | None  # give every guess a floor of its own
    caps: Tensor | None = None  # [B]: guesses each row may have; None: as many as are asked for
    ends_behind: Tensor | None = None  # [B]: no guess follows a first one that is this token; None: of no row

    def floors(self, row: int) -> list[float]:
        """Of each guess that a row may have."""
        most = self.gamma if self.caps is None else min(self.gamma, int(self.caps[row]))
        if self.prices is not None and self.floor > 0:
            return self.prices.floors(row, most)
        return [self.floor] * most


class WholeDraft(NamedTuple):
    """All guesses of a draft, made in one call."""

    tokens: Tensor  # [B, G]
    q: Tensor | None  # [B, G, N]: what they were drawn from, if drawn
    proposed: Tensor  # [B, G] bool: True for a prefix of each row
    left: Tensor | None = None  # [B] bool: rows that are still to be drafted for, guess by guess; None: none is


class HeadBackend(Protocol):
    """A head's layers at work for the rows of one session, with the KV cache of its attention."""

    @property
    def name(self) -> str:
        """As ``choice.choose`` names it."""

    @property
    def capturable(self) -> bool:
        """Whether its steps may be captured as a CUDA graph: no host-device sync, constant shapes."""

    def admit_all(self, texts: Texts, lengths: Mapping[int, int]) -> None:
        """New texts of so many tokens have begun, by row."""

    def commit(self, texts: Texts, tokens: Tensor, count: Tensor) -> None:
        """Append the first count [B] of tokens [B, K] to the texts, and read what the target's states tell of them.

        In a fork the target has not run them: there the head's own states stand for the target's.
        """

    def rewind(self, texts: Texts) -> None:
        """The texts have become shorter."""

    def select(self, texts: Texts, rows: Tensor) -> HeadBackend:
        """The backend to go on with when row i becomes the old row rows[i]; ``texts`` are still the old ones."""

    def fork(self, texts: Texts, rows: Tensor) -> HeadBackend:
        """Another backend whose row i is a copy of row rows[i], for tokens that the target has not run."""

    def begin(self, texts: Texts, gamma: int, caps: Tensor | None = None) -> int:
        """Read the newest states, before the first guess of a draft -> how many guesses there can be.

        ``caps`` [B]: guesses each row may have. A row that may have none need not be read.
        """

    def logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        """Of the N tokens for guess k (from 0), behind token ``last`` [B] -> [B, N]."""

    def likeliest(self, logits: Tensor) -> Tensor:
        """The token with the highest of logits [B, N] -> [B]."""

    def draft(self, texts: Texts, request: DraftRequest) -> WholeDraft | None:
        """After ``begin``, a whole draft in one call.

        None where the backend has no such call, or none for this request: then guess by guess. So are rows that the
        draft leaves out; ``logits`` is then asked for theirs alone.
        """


@runtime_checkable
class PredictsAcceptance(Protocol):
    """An ability of backends: the head itself predicts how likely a guess is kept."""

    def acceptance(self) -> Tensor | None:
        """Of the guess whose logits were given last, before it is drawn [B]; None: this head does not predict it."""


@runtime_checkable
class Branching(HeadBackend, Protocol):
    """An ability of backends: guesses on several branches behind their only row, without a host-device sync."""

    @property
    def branches(self) -> bool:
        """Whether this one has it."""

    def branch(self, parents: Tensor, room: int) -> None:
        """Go on behind these of the last guesses [K]; ``room``: further guesses that there will be on all branches."""

    def branch_logits(self, texts: Texts, k: int, last: Tensor) -> Tensor:
        """Of the N tokens for guess k of all branches, behind their tokens ``last`` [K] -> [K, N]."""

    def likeliest_few(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The so many highest of logits [B, N], highest first: log-probabilities and tokens [B, count]."""


class HeadWeights(Protocol):
    """A head's weights in the form a backend reads, made once for all sessions beside one target."""

    def start(self, rows: int, shape: Shape, several: Callable[[], HeadBackend]) -> HeadBackend:
        """A backend for the rows of a session. ``several``: one for any number of rows, if this one has a limit."""


class WeightsFor(Protocol):
    """How a head's weights are prepared for a backend."""

    def __call__(self, head: Head, output: OutputRows) -> HeadWeights: ...


class ReadyHead(Protocol):
    """A head with weights made for one target: what sessions beside that target are started with."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Of the target, whose states it reads at every position; none: the last hidden state alone."""

    @property
    def output(self) -> DraftTokens: ...

    def start(self, rows: int, shape: Shape) -> HeadBackend:
        """The backend for a session with so many rows."""
