"""What a drafting session may be able to do beyond ``DraftSession``: a protocol for each ability.

A session has the abilities it has attributes for. A session made of others lists them as ``children()``, and each
ability is passed on by the rule in ``Abilities``: what is told goes to the children, what is read comes from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, cast, runtime_checkable

from torch import Tensor

from outrider.core.context import Context
from outrider.core.prices import Prices
from outrider.core.protocols import DraftSession, Session
from outrider.core.token_tree import NodeTree, TreeShape
from outrider.errors import NotForkable, require
from outrider.trace import Level


@runtime_checkable
class Capped(Protocol):
    """Told before every draft how many guesses each row may have: a session that weighs rows or learns from them.

    A row that may have none is as one that is not asked: it costs nothing, and nothing is learnt from it.
    """

    caps: Tensor | None  # [B]; None: as many as are asked for


@runtime_checkable
class Priced(Protocol):
    """Told before every draft what guesses take and time is worth: a session that ends its drafts itself."""

    prices: Prices | None  # None: by rules of its own


@runtime_checkable
class EndingBehind(Protocol):
    """Told before a draft behind which first guess each row's draft ends: another drafter goes on from there."""

    ends_behind: Tensor | None  # [B] tokens, -1: behind none; None: no row's does


@runtime_checkable
class OnlyDrafter(Protocol):
    """Told whether the guesses verified are always this session's own: it then knows, without a host-device sync,
    how many committed tokens it has not run."""

    only_drafter: bool


@runtime_checkable
class Spending(Protocol):
    """Says how many guesses took time in the last draft, where they are not those it holds."""

    @property
    def spent(self) -> int | None:
        """None: those it holds."""

    @property
    def spent_for(self) -> Sequence[int] | None:
        """Rows that they were made for; None: all that were asked, as far as is known."""


@runtime_checkable
class Matching(Protocol):
    """Says how long the match is that each row's last draft was copied behind."""

    @property
    def matched(self) -> Tensor | None:
        """[B] int64, 0 where nothing was copied; None: nothing is ever copied."""


@runtime_checkable
class Levelled(Protocol):
    """Counts what a level of a cascade did."""

    @property
    def levels(self) -> tuple[Level, ...]: ...


@runtime_checkable
class Capturable(Protocol):
    """Says whether its steps can be captured as CUDA graphs; of a composition: its own part in them.

    They make no host-device sync, copy nothing from the host, and change nothing from step to step but contexts,
    model sessions, ``learned`` tensors, and memory by position that is written again before it is read.
    """

    @property
    def capturable(self) -> bool: ...


@runtime_checkable
class Learning(Protocol):
    """Changes tensors of its own from step to step, in place."""

    @property
    def learned(self) -> tuple[Tensor, ...]: ...


@runtime_checkable
class ContextKeeping(Protocol):
    """Keeps the tokens of its rows."""

    context: Context


@runtime_checkable
class ModelRunning(Protocol):
    """Runs language models of its own."""

    @property
    def model_sessions(self) -> tuple[Session, ...]: ...


@runtime_checkable
class Forkable(DraftSession, Protocol):
    """A drafting session that can look ahead along several branches: what beam search asks of a drafter."""

    def fork(self, rows: Tensor) -> Forkable:
        """Another session whose row i is a copy of row rows[i].

        Tokens committed to it are suppositions: it must go on proposing behind them, though the target has not
        run them, and nothing of it may show in this session. It is asked for one guess at a time.
        """


def forkable(session: DraftSession, option: str = "beams") -> Forkable:
    """The session, if it can be forked; an error that says what to do if not. ``option``: what asks for it."""
    kind = "beam search" if option == "beams" else "a tree"
    require(
        isinstance(session, Forkable),
        f"{option}: {type(session).__name__} has no fork(rows), which drafting for {kind} needs; "
        "write one (see docs/adding-a-drafter.md) or use another draft",
        NotForkable,
    )
    return cast(Forkable, session)


@runtime_checkable
class TreeGrowing(Protocol):
    """Grows whole trees of guesses behind its only row, without a host-device sync: what a captured step asks for."""

    @property
    def grows_trees(self) -> bool:
        """Whether it does here."""

    def grow(self, shape: TreeShape) -> NodeTree:
        """The likeliest nodes, by its own probabilities at temperature 1."""


@runtime_checkable
class Composite(Protocol):
    """A drafting session made of others."""

    same_target: bool  # its children draft for the target it drafts for itself; not so in a cascade

    def children(self) -> tuple[DraftSession, ...]: ...


class Abilities:
    """The abilities of a session, its own or its children's. Each is looked for once: a look takes 30 us.

    A session's own ability comes first. Without it,
      caps, prices     are told to every child that drafts for the same target;
      only_drafter, ends_behind  to an only child;
      spent, spent_for, matched  are an only child's: with several, which of them drafted is the session's own to say.
    Own and children's together are the levels, the learned tensors, the contexts and the model sessions, and steps
    can be captured where all of them say so.
    """

    def __init__(self, session: DraftSession | None) -> None:
        self.session: object = session  # None: one that failed, and has no abilities
        made_of = _composite(session)
        self.children: tuple[Abilities, ...] = () if made_of is None else tuple(map(Abilities, made_of.children()))
        self._beside = self.children if made_of is not None and made_of.same_target else ()  # for the same target

    def cap(self, caps: Tensor | None) -> None:
        """How many guesses each row [B] may have; None: as many as are asked for."""
        for session in self._capped:
            session.caps = caps

    def price(self, prices: Prices | None) -> None:
        """What guesses take and time is worth; None: go by rules of your own."""
        for session in self._priced:
            session.prices = prices

    def end_behind(self, tokens: Tensor | None) -> None:
        """The first guess that ends a row's draft [B], -1: none; None: no row's. Who cannot drafts on."""
        if self._ending is not None:
            self._ending.ends_behind = tokens

    def declare_only_drafter(self) -> None:
        """No other drafter's guesses are verified."""
        if isinstance(self.session, OnlyDrafter):
            self.session.only_drafter = True
        elif len(self._beside) == 1:
            self._beside[0].declare_only_drafter()

    @property
    def spent(self) -> int | None:
        return None if self._spending is None else self._spending.spent

    @property
    def spent_for(self) -> Sequence[int] | None:
        return None if self._spending is None else self._spending.spent_for

    @property
    def matched(self) -> Tensor | None:
        return None if self._matching is None else self._matching.matched

    @property
    def levels(self) -> tuple[Level, ...]:
        own = self.session.levels if isinstance(self.session, Levelled) else ()
        return own + tuple(level for child in self.children for level in child.levels)

    @property
    def capturable(self) -> bool:
        own = self._says_capturable
        return own is not None and own.capturable and all(child.capturable for child in self.children)

    @property
    def growing(self) -> TreeGrowing | None:
        """Who grows trees on the device: the session itself, or what it is made of, as it puts their trees together."""
        return self.session if isinstance(self.session, TreeGrowing) and self.session.grows_trees else None

    @property
    def learned(self) -> Iterator[Tensor]:
        if self._learning is not None:
            yield from self._learning.learned
        for child in self.children:
            yield from child.learned

    @property
    def contexts(self) -> Iterator[Context]:
        if isinstance(self.session, ContextKeeping):
            yield self.session.context
        for child in self.children:
            yield from child.contexts

    @property
    def model_sessions(self) -> Iterator[Session]:
        if isinstance(self.session, ModelRunning):
            yield from self.session.model_sessions
        for child in self.children:
            yield from child.model_sessions

    @cached_property
    def _capped(self) -> tuple[Capped, ...]:
        if isinstance(self.session, Capped):
            return (self.session,)
        return tuple(session for child in self._beside for session in child._capped)

    @cached_property
    def _priced(self) -> tuple[Priced, ...]:
        if isinstance(self.session, Priced):
            return (self.session,)
        return tuple(session for child in self._beside for session in child._priced)

    @cached_property
    def _ending(self) -> EndingBehind | None:
        if isinstance(self.session, EndingBehind):
            return self.session
        return self._beside[0]._ending if len(self._beside) == 1 else None

    @cached_property
    def _spending(self) -> Spending | None:
        if isinstance(self.session, Spending):
            return self.session
        return self._beside[0]._spending if len(self._beside) == 1 else None

    @cached_property
    def _matching(self) -> Matching | None:
        if isinstance(self.session, Matching):
            return self.session
        return self._beside[0]._matching if len(self._beside) == 1 else None

    @cached_property
    def _says_capturable(self) -> Capturable | None:
        return self.session if isinstance(self.session, Capturable) else None

    @cached_property
    def _learning(self) -> Learning | None:
        return self.session if isinstance(self.session, Learning) else None


def _composite(session: object) -> Composite | None:
    return session if isinstance(session, Composite) else None
