"""The protocols between models, drafters and the decoding loop. The records they exchange are in ``records.py``.

B rows (sequences) in a batch, G = gamma guesses, V vocabulary, W = the fixed width of a target run.
p is always the target's distribution, q the draft's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from outrider.core.context import Context
from outrider.core.draft import Choices as Choices
from outrider.core.draft import Draft as Draft
from outrider.core.embedding_table import EmbeddingTable
from outrider.core.noise import Noise
from outrider.core.records import Admission as Admission
from outrider.core.records import Shape as Shape
from outrider.core.records import Source as Source
from outrider.core.records import Verdict as Verdict
from outrider.core.records import Verifier as Verifier
from outrider.core.sampling import Sampling


class Scoring(Protocol):
    """What a decoding step needs of the target's session."""

    context: Context
    vocab_size: int

    def score(self, tail: Tensor) -> Tensor: ...

    def commit(self, tokens: Tensor, count: Tensor, follows: bool = True) -> None: ...


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
        """From now on keep what these layers gave: 0 the embeddings, k layer k, -1 the last one behind its norm."""

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
class AdmitsTogether(Protocol):
    """A session that prefills several prompts in one run where bits allow it."""

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        """``Session.admit`` for each of them."""


@runtime_checkable
class ReadsLate(Protocol):
    """A session that can put off encoding its sources until a run needs them."""

    def read_late(self) -> None:
        """From now on do so: for a draft that may never be asked."""


Choose = Callable[[int, Tensor], Tensor]
"""Takes a token for each row: the number of the guess from 0 on, logits [R, V] -> tokens [R]."""


@runtime_checkable
class Guessing(Protocol):
    """A session that may find several guesses without a call of ``extend`` for each."""

    def guess(self, count: int, choosable: int) -> Tensor | None:
        """The likeliest tokens [B, count] behind the committed ones, among the first ``choosable`` of the vocabulary.

        As ``score`` and ``extend`` of one after another; the last is not run. None where the model cannot.
        """

    def guess_chosen(self, count: int, choose: Choose) -> Tensor | None:
        """The same with tokens that ``choose`` takes, for all rows; None also where some row is not in use."""


def admit_all(session: Session | DraftSession, admissions: Sequence[Admission]) -> None:
    """Start sequences: together where the session can, else one by one."""
    if isinstance(session, AdmitsTogether):
        session.admit_all(admissions)
        return
    for new in admissions:
        session.admit(new.row, new.prompt, new.source)


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
        the q drawn from. A draft that is itself the outcome of verification says ``by_verification``: each token then
        follows its probs given the tokens before it, as a function of ``noise`` up to its own position, and with
        the target's own noise the equation holds all the same. Tested as a distribution, and bit for bit.
        """

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        """These tokens are now the truth, whatever was proposed."""

    def rewind(self, lengths: Tensor) -> None:
        """Take back what was committed beyond lengths [B]. Only a cascade asks for it, of the drafter below it."""

    def select(self, rows: Tensor) -> None:
        """Reorder, fork or drop rows."""


@runtime_checkable
class Drafter(Protocol):
    """Something that guesses: immutable, shared by sessions. ``name`` shows in statistics."""

    @property
    def name(self) -> str: ...

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        """A drafting session beside the target's, with the same rows. Heads read ``target.hidden``."""
