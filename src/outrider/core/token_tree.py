"""A tree of guesses behind one text: several candidates for a position, all checked in one target run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from torch import Tensor

ROOT = -1
"""The parent of a first guess: the last token of the text."""


@dataclass(frozen=True)
class TokenTree:
    """Guesses, each behind its parent. Children of a node are candidates for one position, as they were drawn."""

    tokens: tuple[int, ...]  # [N]
    parents: tuple[int, ...]  # [N]: an earlier node, or ROOT

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents)
        assert all(ROOT <= parent < node for node, parent in enumerate(self.parents))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """[N]: 1 for the children of the root."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return tuple(found)

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for node, parent in enumerate(self.parents):
            found[parent] = (*found.get(parent, ()), node)
        return found

    def children(self, node: int) -> tuple[int, ...]:
        return self._children.get(node, ())

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root's child down to this one; none for the root."""
        found: list[int] = []
        while node != ROOT:
            found.append(node)
            node = self.parents[node]
        return tuple(reversed(found))

    def text(self, node: int) -> tuple[int, ...]:
        """The tokens of that path."""
        return tuple(self.tokens[each] for each in self.path(node))


@runtime_checkable
class TreeScoring(Protocol):
    """A session of one row that runs trees: each node once, with the bits it has where its path is the text."""

    def score_tree(self, tree: TokenTree) -> Tensor:
        """Logits after the committed tokens and after each node -> [1, N+1, V], one run."""

    def commit_path(self, path: Sequence[int], token: int) -> None:
        """The truth is now this: nodes of the last tree, from the root's child down, then one more token."""
