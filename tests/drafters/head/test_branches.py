"""A tree of guesses grown on the device by a head whose logits are not all numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.core.token_tree import TreeShape
from outrider.drafters.head.backend import DraftTokens
from outrider.drafters.head.branches import grow

SIZE = 64


class Overflowing:
    """The likeliest branches of each level have logits that are no numbers, as a head in float16 may."""

    def __init__(self, bad: float) -> None:
        self.bad, self.likeliest_few = bad, DraftTokens(torch.arange(SIZE)).likeliest_few

    def begin(self, texts: Any, gamma: int) -> None:
        """Nothing is kept."""

    def branch(self, parents: Tensor, room: int) -> None:
        """Nothing is kept."""

    def logits(self, texts: Any, k: int, last: Tensor) -> Tensor:
        return torch.linspace(8, 0, SIZE)[None]

    def branch_logits(self, texts: Any, k: int, last: Tensor) -> Tensor:
        found = torch.randn((len(last), SIZE), generator=torch.Generator().manual_seed(k))
        found[0, 3] = self.bad
        found[-1] = self.bad
        return found


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("nodes", "levels"), [(8, 3), (12, 3), (28, 3), (16, 4)])
def test_every_node_has_its_parents(nodes: int, levels: int, bad: float) -> None:
    """Catches a node without its parent, which would be judged behind the root: a text that is not the target's."""
    context = SimpleNamespace(
        device=torch.device("cpu"), lengths=torch.tensor([3]), read=lambda start, count: torch.tensor([[5]])
    )
    backend: Any = Overflowing(bad)
    texts: Any = SimpleNamespace(context=context)
    tree = grow(backend, texts, TreeShape.of(nodes, levels))
    for path, depth in zip(tree.places.paths.tolist(), tree.places.depths.tolist(), strict=True):
        assert len([place for place in path if place]) == depth and path[1 : depth + 1] == sorted(set(path) - {0})
