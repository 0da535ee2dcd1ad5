"""A tree of guesses behind one text: several candidates for a position, all checked in one target run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
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

    def places(self, device: torch.device) -> TreePlaces:
        depths = (0, *self.depths)
        paths = torch.zeros((len(depths), max(depths) + 1), dtype=torch.int64)
        for node, depth in enumerate(self.depths):
            paths[node + 1, 1 : depth + 1] = torch.tensor(self.path(node)) + 1
        return TreePlaces(torch.tensor(depths).to(device), paths.to(device))


@dataclass(frozen=True)
class TreePlaces:
    """How the tokens of a run hang together that are a root and the N nodes of a tree behind it: W = N + 1 of them."""

    depths: Tensor  # [W]: 0 of the root, which is the first
    paths: Tensor  # [W, levels]: the tokens of the run from the root to this one, by their place in it; behind it 0


@dataclass(frozen=True)
class TreeShape:
    """How large a tree is that is grown on the device, always the same: a captured step has constant shapes."""

    nodes: int  # N
    levels: int
    beams: int  # nodes of a level whose children are looked for, and children of each

    @staticmethod
    def of(nodes: int, levels: int) -> TreeShape:
        """As many beams as are worth their time, or as it takes to find so many nodes."""
        beams = min(nodes, BEAMS)
        while beams + (levels - 1) * beams**2 < nodes:
            beams += 1
        return TreeShape(nodes, levels, beams)


BEAMS = 8
"""Nodes of a level that are looked behind where nobody says how many."""


@dataclass(frozen=True)
class NodeTree:
    """A tree of guesses on the device, behind the only row."""

    tokens: Tensor  # [1, N]: children behind their parents, the likelier before the others
    places: TreePlaces

    @staticmethod
    def chain(tokens: Tensor) -> NodeTree:
        """Guesses [1, N] behind one another."""
        place = torch.arange(tokens.shape[1] + 1, device=tokens.device)
        return NodeTree(tokens, TreePlaces(place, torch.where(place <= place[:, None], place, 0)))

    def with_tree(self, other: NodeTree) -> NodeTree:
        """Both behind the root. A node that is in both is run twice; whichever is followed, the text is the same."""
        own, shift = self.tokens.shape[1], torch.nn.functional.pad
        levels = max(self.places.paths.shape[1], other.places.paths.shape[1])
        theirs = torch.where(other.places.paths[1:] > 0, other.places.paths[1:] + own, 0)
        paths = [shift(each, (0, levels - each.shape[1])) for each in (self.places.paths, theirs)]
        depths = torch.cat([self.places.depths, other.places.depths[1:]])
        return NodeTree(torch.cat([self.tokens, other.tokens], 1), TreePlaces(depths, torch.cat(paths)))

    @property
    def parents(self) -> Tensor:
        """[N]: of the nodes, by their places in the run."""
        return self.places.paths[1:].gather(1, self.places.depths[1:, None] - 1)[:, 0]

    def beside(self, last: Tensor) -> Tensor:
        """The first guess behind a token of the run [1], by its place -> [1]; -1: there is none."""
        count = self.tokens.shape[1]
        numbers = torch.arange(count, device=last.device)
        first = torch.where(self.parents == last, numbers, count).amin(0, keepdim=True)
        return torch.nn.functional.pad(self.tokens[0], (0, 1), value=-1)[first]

    def followed(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept if the target's own tokens behind the root and every node are chosen [W]: the place of the last
        node that is kept in the run [1], 0 for the root, and how many there are [1]."""
        same = torch.nn.functional.pad(self.tokens[0] == chosen[self.parents], (1, 0), value=True)  # [W]
        followed = same[self.places.paths].all(1)  # behind the end of a path stands the root, which always counts
        reached = torch.where(followed, self.places.depths, 0)
        kept, last = reached.max(0, keepdim=True)
        return last, kept


@runtime_checkable
class TreeScoring(Protocol):
    """A session of one row that runs trees: each node once, with the bits it has where its path is the text."""

    def score_tree(self, tree: TokenTree) -> Tensor:
        """Logits after the committed tokens and after each node -> [1, N+1, V], one run."""

    def commit_path(self, path: Sequence[int], token: int) -> None:
        """The truth is now this: nodes of the last tree, from the root's child down, then one more token."""


@runtime_checkable
class NodeScoring(Protocol):
    """The same of a tree that lies on the device, without a host-device sync: what a captured step asks for."""

    def score_nodes(self, tokens: Tensor, places: TreePlaces) -> Tensor:
        """Logits after the committed tokens and after each of the nodes [1, N] -> [1, N+1, V], one run."""

    def commit_nodes(self, path: Tensor, tokens: Tensor, count: Tensor) -> None:
        """The truth is now the first count [1] of tokens [1, D+1]: nodes of the last run, then one of the target's own.

        path [1, D]: the places of these nodes in the run, from the root's child at 1; behind them those of anything.
        """
