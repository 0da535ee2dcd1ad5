"""What drafting sessions made of others share: whatever happens to a row happens to all of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

from torch import Tensor

from outrider.core.abilities import Abilities, forkable
from outrider.core.protocols import Admission, DraftSession, Source, admit_all
from outrider.core.token_tree import NodeTree, TreeShape


class CompositeSession:
    """Sessions that draft for one target. Subclasses write ``propose`` and the abilities that are their own.

    All other abilities are passed on by the rules in ``core/abilities.py``.
    """

    same_target = True

    def __init__(self, *sessions: DraftSession) -> None:
        self._adopt(sessions)

    def _adopt(self, sessions: tuple[DraftSession, ...]) -> None:
        self.sessions, self.abilities = sessions, tuple(map(Abilities, sessions))

    def children(self) -> tuple[DraftSession, ...]:
        return self.sessions

    @property
    def capturable(self) -> bool:
        """Its own part in a step: see ``Capturable``."""
        return False

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.admit_all([Admission(row, prompt, source)])

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        for session in self.sessions:
            admit_all(session, admissions)

    def release(self, row: int) -> None:
        for session in self.sessions:
            session.release(row)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        for session in self.sessions:
            session.commit(tokens, count)

    def rewind(self, lengths: Tensor) -> None:
        for session in self.sessions:
            session.rewind(lengths)

    def select(self, rows: Tensor) -> None:
        for session in self.sessions:
            session.select(rows)
        self._select(rows)

    @property
    def grows_trees(self) -> bool:
        return self.same_target and len(self.sessions) <= 2 and all(each.growing for each in self.abilities)

    def grow(self, shape: TreeShape) -> NodeTree:
        """The last session's tree, and beside it the longest path of another before it."""
        *others, last = (each.growing for each in self.abilities)
        assert last is not None
        chain = min(shape.levels, shape.nodes // 2)
        if not others or not chain:
            return last.grow(shape)
        assert others[0] is not None
        rest = TreeShape.of(shape.nodes - chain, min(shape.levels, shape.nodes - chain))
        return last.grow(rest).with_tree(others[0].grow(TreeShape(chain, chain, 1)))

    def fork(self, rows: Tensor) -> Self:
        other = copy(self)
        other._adopt(tuple(forkable(session).fork(rows) for session in self.sessions))
        other._select(rows)
        return other

    def _select(self, rows: Tensor) -> None:
        """What it keeps by row itself goes with the rows. Nothing may be changed in place: a fork shares it."""
