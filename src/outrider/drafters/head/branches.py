"""A tree of guesses grown by a head on the device: level by level, the likeliest nodes by its own probabilities.

All shapes are constant, and nothing is read on the host, so that a CUDA graph can hold it. Behind the likeliest nodes
of each level, the beams, the head is asked in one run; of all candidates that were found the likeliest are the tree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.token_tree import NodeTree, TreePlaces, TreeShape
from outrider.drafters.head.backend import Branching, Texts

STEP = 1e-3
"""Taken off the log-probability of each node: a node is never as likely as the one that it is behind."""

LEAST = -30.0
"""The least log-probability that counts: with less of them sums could no longer be told apart. What is no number, of a
head whose logits are infinite, counts as this: with NaN a node would be in the tree without its parent."""


class _Candidates:
    """All that were found, in the order of levels: children always behind their parents."""

    def __init__(self, shape: TreeShape, device: torch.device) -> None:
        self.shape, self.device, self.count = shape, device, 0
        self.values: list[Tensor] = []  # [n] each: log-probabilities of paths
        self.tokens: list[Tensor] = []
        self.paths: list[Tensor] = []  # [n, levels]: candidates from the root's child on, itself included; then -1

    def add(self, values: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
        """Children of K nodes [K, M], the paths of the nodes [K, level] -> their own paths [K M, level + 1]."""
        nodes, each = values.shape
        numbers = torch.arange(self.count, self.count + nodes * each, device=self.device)
        paths = torch.cat([parents.repeat_interleave(each, 0), numbers[:, None]], 1)
        self.values.append(values.flatten())
        self.tokens.append(tokens.flatten())
        self.paths.append(torch.nn.functional.pad(paths, (0, self.shape.levels - paths.shape[1]), value=-1))
        self.count += nodes * each
        return paths

    def best(self) -> NodeTree:
        """The tree of the likeliest. Every node is less likely than its parent, so all parents are in it."""
        values, tokens, paths = map(torch.cat, (self.values, self.tokens, self.paths))
        kept = values.topk(self.shape.nodes).indices.sort().values  # [N]
        numbers = torch.zeros(self.count + 1, dtype=torch.int64, device=self.device)  # in the run, where the root is 0
        numbers.scatter_(0, kept, torch.arange(1, len(kept) + 1, device=self.device))
        chosen = paths[kept]
        levels = torch.nn.functional.pad((chosen >= 0).sum(1), (1, 0))
        places = torch.nn.functional.pad(numbers[chosen], (1, 0, 1, 0))  # -1 is the last number, which is the root's
        return NodeTree(tokens[kept][None], TreePlaces(levels, places))


def _counted(chances: Tensor) -> Tensor:
    return chances.nan_to_num(nan=LEAST).clamp(LEAST, 0.0)


@torch.no_grad()
def grow(backend: Branching, texts: Texts, shape: TreeShape) -> NodeTree:
    backend.begin(texts, shape.levels)
    device, few = texts.context.device, backend.likeliest_few
    found = _Candidates(shape, device)
    last = texts.context.read(texts.context.lengths - 1, 1)[:, 0]
    values, tokens = few(backend.logits(texts, 0, last), shape.beams)  # [1, K]
    paths = found.add(_counted(values) - STEP, tokens, torch.zeros((1, 0), dtype=torch.int64, device=device))
    values, tokens = found.values[0], tokens[0]  # of the beams [K]
    parents, room = torch.zeros_like(tokens), (shape.levels - 1) * shape.beams
    for level in range(1, shape.levels):
        backend.branch(parents, room)
        chances, behind = few(backend.branch_logits(texts, level, tokens), shape.beams)  # [K, K]
        paths = found.add(values[:, None] + _counted(chances) - STEP, behind, paths)
        values, chosen = found.values[-1].topk(shape.beams)
        parents, tokens, paths = chosen // shape.beams, behind.flatten()[chosen], paths[chosen]
    return found.best()
