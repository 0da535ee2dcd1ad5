"""Trees of guesses: several candidates for a position, examined one after another, and the target's distribution kept.

The candidates x_1, x_2 ... behind a node were drawn from q without replacement. x_1 is kept as in section 2.3 of
Leviathan et al. (2023). After a rejection the token must follow the rest of p, norm(max(0, p - q)), and x_2 was drawn
from q without x_1: the same again, with these two (recursive rejection: Jeon et al. 2024, Yang et al. 2024). What no
candidate takes is drawn from what is then left of p. Behind a candidate that is kept, its own children are next.

With the target's own noise, and at temperature 0, it is simpler: the target draws its token, and a candidate is kept
if it is that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.draft import Choices
from outrider.core.noise import Noise
from outrider.core.protocols import Verifier
from outrider.core.token_tree import ROOT, TokenTree
from outrider.core.verification.maximal import maximal_coupling
from outrider.errors import require

Probabilities = NDArray[np.float64]
"""Probabilities of the vocabulary [V]."""


def point_masses(node: int) -> None:
    """The probabilities of children that nobody drew."""


@dataclass(frozen=True)
class TreeDraft:
    """A tree of guesses with the distributions that they were drawn from."""

    tree: TokenTree
    probabilities: Callable[[int], Probabilities | None] = point_masses
    """Of a node: q [V] that its children were drawn from, without replacement and in their order; None: nobody drew
    them."""


@dataclass(frozen=True)
class TreeVerdict:
    """The nodes that are kept, from the root's child down, then a token of the target's own."""

    path: tuple[int, ...]
    token: int
    healthy: int  # how many of these tokens rest on logits that are numbers


class Residual:
    """What the token of a position must still follow, while candidates are rejected one by one."""

    def __init__(self, p: Probabilities, q: Probabilities | None) -> None:
        """q: what the candidates were drawn from without replacement; None: they are point masses."""
        self.p, self.q = p / p.sum(), None if q is None else q / q.sum()

    def chance(self, x: int) -> float:
        """That candidate x, the next one, is kept."""
        q = 1.0 if self.q is None else self.q[x]
        return min(1.0, float(self.p[x] / q)) if q > 0 else 0.0

    def reject(self, x: int) -> None:
        if self.q is None:
            left = self.p.copy()
            left[x] = 0
        else:
            left = np.maximum(self.p - self.q, 0)
            rest = self.q.copy()
            rest[x] = 0
            self.q = rest / total if (total := rest.sum()) > 0 else rest
        if (total := left.sum()) > 0:  # where rounding leaves nothing, p and q are equal, and p is the right limit
            self.p = left / total


def happens(chance: float, noise: Noise, stream: str, at: Tensor) -> bool:
    """Whether something of this chance does, by the uniform of a position [1, 1]."""
    return chance > 0 and float(noise.uniform(stream, at)) <= chance


@dataclass(frozen=True)
class Decision:
    """What was decided for one position."""

    kept: int | None  # which of the candidates; None: none of them
    token: int


class NodeRule(Protocol):
    """Decides one position: by p, the candidates in their order, and what they were drawn from, if they were."""

    def __call__(
        self, p: Tensor | Choices, candidates: Sequence[int], q: Probabilities | None, noise: Noise, at: Tensor
    ) -> Decision: ...


def one_by_one(
    p: Tensor | Choices, candidates: Sequence[int], q: Probabilities | None, noise: Noise, at: Tensor
) -> Decision:
    """Maximal coupling with several candidates: p [1, 1, V] at position ``at`` [1, 1]."""
    assert isinstance(p, Tensor)
    if not candidates:
        return Decision(None, int(noise.winner("token", at, p)))
    residual = Residual(p[0, 0].double().numpy(), q)
    for number, x in enumerate(candidates):
        stream = "accept" if number == 0 else f"accept {number + 1}"
        if happens(residual.chance(x), noise, stream, at):
            return Decision(number, x)
        residual.reject(x)
    rest = torch.from_numpy(residual.p).to(p.dtype)[None, None]
    return Decision(None, int(noise.winner("token", at, rest)))


def by_matching(
    p: Tensor | Choices, candidates: Sequence[int], q: Probabilities | None, noise: Noise, at: Tensor
) -> Decision:
    """The target's own token, and the candidate that is this token."""
    y = int(p.tokens if isinstance(p, Choices) else noise.winner("token", at, p))
    return Decision(candidates.index(y) if y in candidates else None, y)


def tree_rule(verifier: Verifier) -> NodeRule:
    """How a tree is verified where a chain would be verified by this rule; an error where no such rule is known."""
    known = verifier.exact and (verifier.compares or verifier is maximal_coupling)
    require(known, f"tree: coupling {verifier.name!r} judges chains of guesses only; use 'maximal' or 'gumbel'")
    return by_matching if verifier.compares else one_by_one


def walk(
    draft: TreeDraft, target: Callable[[int], Tensor | Choices], rule: NodeRule, noise: Noise, start: int
) -> TreeVerdict:
    """Follow candidates that are kept, down from the root.

    target: p behind a node, [1, 1, V], asked for only where the walk comes by; start: the position behind the root.
    """
    path: list[int] = []
    healthy = 0
    while True:
        node = path[-1] if path else ROOT
        children, p = draft.tree.children(node), target(node)
        weight = float(p.weight if isinstance(p, Choices) else p.amax())
        if not np.isfinite(weight):  # the text ends here, whatever is said to follow
            return TreeVerdict(tuple(path), 0, healthy)
        candidates = [draft.tree.tokens[child] for child in children]
        at = torch.tensor([[start + len(path)]])
        found = rule(p, candidates, draft.probabilities(node) if candidates else None, noise, at)
        healthy += 1
        if found.kept is None:
            return TreeVerdict(tuple(path), found.token, healthy)
        path.append(children[found.kept])
