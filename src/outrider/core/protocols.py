"""The words everything else is written in: protocols and records, with their shapes.

B rows (sequences) in a batch, G = gamma guesses, V vocabulary, W = the fixed width of a target run.
p is always the target's distribution, q the draft's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from outrider.core.draft import Choices as Choices
from outrider.core.draft import Draft as Draft
from outrider.core.embedding_table import EmbeddingTable
from outrider.errors import require

if TYPE_CHECKING:
    from outrider.core.context import Context
    from outrider.core.noise import Noise
    from outrider.core.sampling import Sampling
    from outrider.drafters.prices import Prices

Source = Sequence[int] | Tensor
"""What an encoder reads: token ids, or its finished output [S, size]."""


@dataclass(frozen=True)
class Verdict:
    """What verification decided: n guesses kept, then one token of the target's own."""

    accepted: Tensor  # [B] int64: n
    token: Tensor  # [B] int64: t


def _as_asked(sampling: Sampling) -> Sampling:
    return sampling


def _p_itself(p: Any) -> Any:
    return p


@dataclass(frozen=True)
class Verifier:
    """A rule that turns p and a draft into a verdict: a pure function and what it promises."""

    name: str
    rule: Callable[[Any, Draft, Noise, Tensor], Verdict]  # of p as a table, or as choices where it compares tokens
    exact: bool  # the output follows the target's distribution
    shares_noise: bool  # the draft is drawn with the very noise the target would use
    compares: bool = False  # guesses with the tokens the target chooses: at temperature 0 it needs no more of p
    looks_ahead: bool = False  # guesses behind the last one kept have a say in the verdict
    sees: Callable[[Sampling], Sampling] = _as_asked  # the options its p is standardised with
    ceiling: Callable[[Any], Any] = _p_itself  # the most each token may be given: p itself if exact

    def __call__(self, p: Tensor | Choices, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        return self.rule(p, draft, noise, at)

    def noise_for_draft(self, noise: Noise, at: Tensor) -> Noise:
        """Shared or independent: independence is what makes acceptance by p/q unbiased.

        A rule that looks ahead has let numbers at positions to come decide something. Used again by the next run
        they would no longer be random, so it draws from streams of this run alone.
        """
        own = noise.of_run(at) if self.looks_ahead else noise
        return noise if self.shares_noise else own.child("draft")


@runtime_checkable
class Session(Protocol):
    """A batch of sequences on one model. Rollback and the off-by-one after full acceptance live here only."""

    context: Context
    vocab_size: int
    embedding: EmbeddingTable | None
    unembedding: EmbeddingTable | None
    """[V, size] each: the model's input and output tables, for heads that share them; None if it shows none."""

    @property
    def hidden(self) -> Tensor | None:
        """[B, size]: what the output layer read when it gave each row's last token; None if the model shows none."""

    @property
    def states(self) -> Tensor | None:
        """[B, C, L, size]: what the layers asked for with ``keep_states`` gave at every position run so far."""

    @property
    def device(self) -> torch.device: ...

    def keep_states(self, layers: Sequence[int]) -> None:
        """From now on keep what these layers gave: 0 the embeddings, k layer k, -1 the last."""

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        """Start a sequence in a slot: everything but its last token is run through the model, alone."""

    def release(self, row: int) -> None:
        """The row is done: it stays as padding and its length no longer grows."""

    def score(self, tail: Tensor) -> Tensor:
        """Logits after the committed tokens and each guess of ``tail`` [B, G] -> [B, G+1, V], one run."""

    def extend(self, tokens: Tensor) -> Tensor:
        """Go on from the last score: feed further guesses [B, K] -> logits after each of them [B, K, V]."""

    def commit(self, tokens: Tensor, count: Tensor, follows: bool = True) -> None:
        """The truth is now this: the first count [B] of tokens [B, K] are appended.

        What was scored and agrees stays cached; the rest is run next time. ``follows`` promises that the
        tokens agree with the scored guesses but for the last of each row, which bounds that rest without
        asking the device how long it is.
        """

    def rewind(self, lengths: Tensor) -> None:
        """Take back what was committed beyond lengths [B]: it was only believed. Shorter rows stay as they are.

        ``hidden`` is right again after the next score; before, it is the nearest state of the last run.
        """

    def select(self, rows: Tensor) -> None:
        """Reorder, fork or drop rows: row i becomes the old row rows[i]."""

    def fork(self, rows: Tensor) -> Session:
        """Another session whose row i is a copy of row rows[i]; nothing that happens there shows here."""


@runtime_checkable
class LanguageModel(Protocol):
    """A model: immutable, shared by sessions."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int | None:
        """Tokens a sequence may have; None if unlimited."""

    @property
    def device(self) -> torch.device: ...

    def start(self, rows: int, shape: Shape) -> Session:
        """A session with ``rows`` empty slots."""


@dataclass(frozen=True)
class Shape:
    """The constant shapes of a session. Same shapes, same kernels, same bits."""

    capacity: int  # tokens a row can hold
    width: int  # W: tokens per row in every run after prefill
    source_capacity: int = 0  # encoder positions a row can hold
    chunk: int = 64  # tokens per prefill run
    fixed: bool = True  # False: runs are as narrow as they can be, and bits may differ


@runtime_checkable
class DraftSession(Protocol):
    """A batch of sequences being drafted for."""

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        """Start a sequence in a slot."""

    def release(self, row: int) -> None:
        """The row is done."""

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        """Up to gamma guesses per row for the positions at[:, :gamma] (``at`` is [B, gamma+1]).

        Rows may differ (``proposed``), and all may be shorter than gamma (fewer columns).
        Contract, tested bit for bit: tokens == draw(probs, noise.race("token", at)), so the q returned is
        the q drawn from. A draft that is itself the outcome of verification says ``by_law``: each token then
        follows its probs given the tokens before it, as a function of ``noise`` up to its own position, and with
        the target's own noise the equation holds all the same. Tested as a law, and bit for bit.
        """

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        """These tokens are now the truth, whatever was proposed."""

    def rewind(self, lengths: Tensor) -> None:
        """Take back what was committed beyond lengths [B]. Only a cascade asks for it, of the drafter below it."""

    def select(self, rows: Tensor) -> None:
        """Reorder, fork or drop rows."""


@runtime_checkable
class Forkable(DraftSession, Protocol):
    """A drafting session that can look ahead along several branches: what beam search asks of a drafter."""

    def fork(self, rows: Tensor) -> Forkable:
        """Another session whose row i is a copy of row rows[i].

        Tokens committed to it are suppositions: it must go on proposing behind them, though the target has not
        run them, and nothing of it may show in this session. It is asked for one guess at a time.
        """


def forkable(session: DraftSession) -> Forkable:
    """The session, if it can be forked; an error that says what to do if not."""
    require(
        isinstance(session, Forkable),
        f"beams: {type(session).__name__} has no fork(rows), which drafting for beam search needs; "
        "write one (see docs/adding-a-drafter.md) or use another draft",
    )
    return cast(Forkable, session)


@runtime_checkable
class Drafter(Protocol):
    """Something that guesses: immutable, shared by sessions. ``name`` shows in statistics."""

    @property
    def name(self) -> str: ...

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        """A drafting session beside the target's, with the same rows. Heads read ``target.hidden``."""


@runtime_checkable
class Costed(Protocol):
    """A drafter that says what a guess takes, in plain target runs: what is planned by where nothing is measured."""

    @property
    def cost(self) -> float: ...


@runtime_checkable
class CostsByRows(Protocol):
    """A drafter whose guesses take another share of a target run beside other rows than alone."""

    def cost_for(self, rows: int) -> float: ...


def declared_cost(drafter: Drafter, rows: int = 1) -> float:
    """c: time of a guess over time of a target run, as the drafter says; a small head's where it says nothing."""
    if isinstance(drafter, CostsByRows):
        return drafter.cost_for(rows)
    return float(drafter.cost) if isinstance(drafter, Costed) else 0.05


@runtime_checkable
class Capped(Protocol):
    """A drafting session that weighs each row's guesses itself, and is told how many the row may have.

    A row that may have none is as one that is not asked: it costs nothing, and nothing is learnt from it.
    """

    caps: Tensor | None  # [B]; None: as many as are asked for


@runtime_checkable
class Priced(Protocol):
    """A drafting session that ends its drafts itself, by what guesses take here and time is worth."""

    prices: Prices | None  # None: by rules of its own


@runtime_checkable
class Spending(Protocol):
    """A drafting session whose last draft took the time of other guesses than it holds."""

    @property
    def spent(self) -> int | None:
        """How many; None: those it holds."""
