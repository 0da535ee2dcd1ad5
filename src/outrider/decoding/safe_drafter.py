"""A drafter must never be able to hurt a request: when one raises, the request goes on without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from outrider.core.abilities import Abilities
from outrider.core.noise import Noise
from outrider.core.prices import Prices
from outrider.core.protocols import Admission, Draft, DraftSession, Session, Source, admit_all
from outrider.core.sampling import Sampling
from outrider.errors import BadOption, OutriderError, ProcessorError
from outrider.planning.setting import RESTS_AFTER
from outrider.trace import Level

T = TypeVar("T")


class SafeDrafter:
    """A draft session that answers with no guesses once the real one has raised; ``error`` says why.

    While no guesses are asked for, committed tokens are collected and passed on up to ``most`` at once. While it
    rests, it is told nothing at all, not even of prompts, and starts anew with the texts when it is asked.
    """

    def __init__(self, start: Callable[[], DraftSession], rows: int, target: Session, most: int = 1) -> None:
        self.rows, self.target, self.most = rows, target, most
        self.error: str | None = None
        self._adopt(None)
        self._guarding = True
        self.captured = False  # set where steps are captured as CUDA graphs: what they read must stay in place
        self.caps: Tensor | None = None  # [B]: the most guesses of each row; None: what the drafter gives
        self._capped: list[int] = []  # what ``caps`` holds, or would
        self._asked = True
        self.texts_read: frozenset[int] = frozenset()  # rows whose texts were read for the last draft, their first
        self._unread: set[int] = set()
        self._pending: list[Tensor] = []  # [B, 1] each: committed to every row, and not yet told
        self._nothing = Draft.empty(rows, target.device)
        self.may_rest = self.resting = False
        self._admitted: dict[int, Admission] = {}  # the rows there are, as they began
        self._idle_runs = 0
        try:
            self._adopt(start())
        except OutriderError:  # a drafter that does not fit this target is the user's to know
            raise
        except Exception as error:
            self._fail(error)

    def _adopt(self, session: DraftSession | None) -> None:
        self.session, self.abilities = session, Abilities(session)

    def rest(self, at_first: bool, again: bool) -> None:
        """Before rows are admitted: whether it rests until it is asked, and again whenever nobody asks for a while."""
        if self.resting and not at_first:
            for row in range(self.rows):  # of a batch before, which it was not told that they have ended
                self._call(lambda session: session.release(row))  # noqa: B023
        self.resting, self.may_rest = at_first and self.session is not None, again

    def prepare(self, gamma: int) -> None:
        """Before a step with so many guesses."""
        self._idle_runs = 0 if gamma else self._idle_runs + 1
        if gamma > 0:
            self._wake()
        elif self.may_rest and self._idle_runs > RESTS_AFTER and self.session is not None:
            self._pending.clear()
            self.resting = True

    def _wake(self) -> None:
        """Every row starts anew, with its text so far as its prompt."""
        if not self.resting:
            return
        self.resting = False
        context = self.target.context
        active, lengths = context.active.tolist(), context.lengths.tolist()
        tokens = context.tokens[:, : max(lengths)].tolist()
        for row in (row for row in range(self.rows) if not active[row]):
            self._call(lambda session: session.release(row))  # noqa: B023
        new = []
        for row in range(self.rows):
            if active[row] and (began := self._admitted.get(row)) is not None:
                written = lengths[row] - len(began.prompt)
                new.append(replace(began, prompt=tokens[row][: lengths[row]], written=written))
        self._unread = {admission.row for admission in new}
        self._call(lambda session: admit_all(session, new))

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        self._admitted |= {new.row: new for new in admissions}
        if not self.resting:
            self._tell()
            self._unread |= {new.row for new in admissions}
            self._call(lambda session: admit_all(session, admissions))

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.admit_all([Admission(row, prompt, source)])

    def release(self, row: int) -> None:
        if not self.resting:
            self._tell()
            self._unread.discard(row)
            self._call(lambda session: session.release(row))

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        self._asked = (gamma > 0 or self.captured) and not self.resting
        if not self._asked:
            return self._nothing
        self._tell()
        self.texts_read = frozenset()
        shape = (self.rows, gamma, self.target.vocab_size)
        draft = self._call(lambda session: _checked(session.propose(gamma, sampling, noise, at), shape))
        if draft is not None and self.spent != 0:  # who makes no guess has read nothing
            asked = self.abilities.spent_for
            asked = [row for row, guesses in enumerate(self._capped) if guesses] if asked is None else asked
            self.texts_read = frozenset(self._unread.intersection(asked))
            self._unread -= self.texts_read
        return Draft.empty(self.rows, self.target.device) if draft is None else draft.cut(self.caps)

    def cap(self, guesses: Sequence[int]) -> None:
        """No row drafts more than this next time. Rows share a drafter's run, but not each other's gamma."""
        if self.captured:  # a graph reads them where they were
            self.caps = (
                torch.zeros(self.rows, dtype=torch.int64, device=self.target.device) if self.caps is None else self.caps
            )
            if self._capped != list(guesses):  # pinned: sending them does not wait for the step under way
                self.caps.copy_(torch.tensor(guesses, pin_memory=self.caps.is_cuda), non_blocking=True)
        else:
            alike = min(guesses) == max(guesses)
            self.caps = None if alike else torch.tensor(guesses, dtype=torch.int64, device=self.target.device)
        self._capped = list(guesses)
        self.abilities.cap(self.caps)

    def price(self, prices: Prices | None) -> None:
        """What guesses take and time is worth, for a drafter that asks; None: it goes by rules of its own."""
        self.abilities.price(None if prices is None else replace(prices, most=self._capped))

    @property
    def spent(self) -> int | None:
        """Guesses that took time in the last draft, where they are not those it holds."""
        return self.abilities.spent

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        if self.resting:
            return
        if self._asked or tokens.shape[1] > 1:
            self._tell()
            self._call(lambda session: session.commit(tokens, count))
            return
        self._pending.append(tokens)
        if len(self._pending) >= self.most:
            self._tell()

    def _tell(self) -> None:
        """A run without guesses adds one token to each row: those of several runs are one commit."""
        if self._pending:
            tokens, self._pending = torch.cat(self._pending, 1), []
            self._call(lambda session: session.commit(tokens, torch.full_like(tokens[:, 0], tokens.shape[1])))

    def rewind(self, lengths: Tensor) -> None:
        self._wake()
        self._tell()
        self._call(lambda session: session.rewind(lengths))

    def select(self, rows: Tensor) -> None:
        self._wake()
        self._tell()
        self.rows, self._nothing = len(rows), Draft.empty(len(rows), rows.device)
        self._call(lambda session: session.select(rows))

    def attempt(self, function: Callable[[DraftSession], T]) -> T | None:
        """Whatever else is to be done with the real session; None if it has raised or does now."""
        self._wake()
        self._tell()
        if self.session is None:
            return None
        try:
            return function(self.session)
        except BadOption:  # asked for something that this drafter does not have: the user's to know
            raise
        except Exception as error:
            self._fail(error)
            return None

    @property
    def levels(self) -> tuple[Level, ...]:
        """What the levels of a cascade did; other drafters have none."""
        return self.abilities.levels

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let what the drafter raises through: for whoever tries something out and can do without."""
        self._guarding = False
        try:
            yield
        finally:
            self._guarding = True

    def _call(self, function: Callable[[DraftSession], T]) -> T | None:
        """What the real session answers; None once it has raised."""
        if self.session is None:
            return None
        try:
            return function(self.session)
        except ProcessorError:  # the caller's processor, which the target would meet next: not the drafter's fault
            raise
        except Exception as error:  # whatever a drafter may raise, by design
            if not self._guarding:
                raise
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        self._adopt(None)
        self.error = f"{type(error).__name__}: {error}"
        warnings.warn(f"the drafter failed and is left out from here on: {self.error}", stacklevel=4)


def _checked(draft: object, shape: tuple[int, int, int]) -> Draft:
    """The draft. One of the wrong form would fail in the middle of a step. Shapes only: no host-device sync."""
    rows, gamma, vocab_size = shape
    if not isinstance(draft, Draft) or draft.tokens.dtype != torch.int64 or draft.tokens.dim() != 2:
        raise TypeError("propose must return a Draft with int64 tokens [rows, guesses]")
    form = (rows, draft.tokens.shape[1])
    shaped = draft.tokens.shape == form == draft.proposed.shape and form[1] <= gamma
    about = vocab_size if draft.support is None else len(draft.support)
    if not shaped or (draft.probs is not None and draft.probs.shape != (*form, about)):
        probs = None if draft.probs is None else tuple(draft.probs.shape)
        raise ValueError(
            f"a draft must be [{rows}, <= {gamma}] with probs [..., {about}] or None, got tokens "
            f"{tuple(draft.tokens.shape)}, proposed {tuple(draft.proposed.shape)}, probs {probs}"
        )
    return draft
