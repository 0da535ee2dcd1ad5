"""A tree of guesses for beam search: the drafter's own beam search, laid out in the rows of one target run.

M_q searches with width u from the running hypotheses and their true scores. The rows of a target run are paths
of that tree; all that a row shares with another is in its cache already, except the guesses themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.beam.rules import Hypothesis, Tokens
from outrider.core.abilities import forkable
from outrider.core.noise import Silence
from outrider.core.protocols import Draft, DraftSession
from outrider.core.sampling import Sampling


@dataclass(frozen=True)
class Root:
    """A running hypothesis and the row it stands in."""

    hypothesis: Hypothesis
    row: int


@dataclass(frozen=True)
class Growth:
    """How to grow a tree."""

    width: int  # u: branches kept at every level, and rows of a target run
    depth: int  # gamma: levels
    sampling: Sampling  # the target's, at temperature 1: q is what ranks the branches
    ends: tuple[int, ...]  # tokens behind which nothing is ever run
    device: torch.device
    vocab_size: int


@dataclass
class Path:
    """A row of a target run: a running hypothesis and guesses behind it."""

    root: Root
    tail: list[int]
    row: int = -1  # where it is run


def grow(session: DraftSession, roots: Sequence[Root], growth: Growth) -> list[list[Hypothesis]]:
    """gamma levels of the u likeliest branches behind the roots by the drafter's account, best first."""
    at = torch.zeros((growth.width, 2), dtype=torch.int64, device=growth.device)
    frontier = list(roots)
    levels: list[list[Hypothesis]] = []
    ahead = session
    for level in range(growth.depth):
        draft = ahead.propose(1, growth.sampling, Silence(at[:, 0]), at).usable(growth.vocab_size)
        branches = _likeliest(draft, frontier, growth)
        if not branches:
            break
        levels.append([hypothesis for hypothesis, _ in branches])
        if level + 1 < growth.depth:
            ahead = _descend(session, ahead, branches, growth)
        frontier = [Root(hypothesis, row) for row, (hypothesis, _) in enumerate(branches)]
    return levels


def _descend(
    session: DraftSession, ahead: DraftSession, branches: list[tuple[Hypothesis, int]], growth: Growth
) -> DraftSession:
    """The session as it would be behind the branches: a row for each, spare rows repeat the first."""
    spare = [branches[0]] * (growth.width - len(branches))
    parents = torch.tensor([row for _, row in branches + spare], device=growth.device)
    tokens = torch.tensor([h.tokens[-1:] for h, _ in branches + spare], device=growth.device)  # [u, 1]
    if ahead is session:
        ahead = forkable(session).fork(parents)
    else:
        ahead.select(parents)
    ahead.commit(tokens, torch.ones_like(tokens[:, 0]))
    return ahead


def _likeliest(draft: Draft, frontier: Sequence[Root], growth: Growth) -> list[tuple[Hypothesis, int]]:
    """The u best continuations of the frontier that do not end, each with its parent's row."""
    if draft.tokens.shape[1] == 0:
        return []
    log_q, tokens = _best(draft, torch.tensor([root.row for root in frontier], device=growth.device), growth)
    totals = log_q + torch.tensor([root.hypothesis.score for root in frontier])[:, None]  # [F, k]
    values, order = totals.flatten().sort(descending=True, stable=True)
    branches = []
    for score, index in zip(values[: growth.width].tolist(), order[: growth.width].tolist(), strict=True):
        parent, rank = divmod(index, totals.shape[1])
        root = frontier[parent]
        if score > -torch.inf:
            branches.append((Hypothesis((*root.hypothesis.tokens, tokens[parent][rank]), score), root.row))
    return branches


def _best(draft: Draft, rows: Tensor, growth: Growth) -> tuple[Tensor, list[list[int]]]:
    """log q of the best continuations of each row [F] and the tokens themselves, on the host: [F, k] each."""
    known = draft.proposed[rows, :1]  # [F, 1]
    if draft.probs is None:
        tokens = draft.tokens[rows, :1]
        known = known & ~torch.isin(tokens, torch.tensor(growth.ends, dtype=torch.int64, device=rows.device))
        log_q = torch.zeros_like(tokens, dtype=torch.float32)
    else:
        q, ends = (
            draft.probs[rows, 0].to(torch.float32),
            torch.tensor(growth.ends, dtype=torch.int64, device=rows.device),
        )
        known_by = torch.arange(q.shape[1], device=q.device) if draft.support is None else draft.support  # [V or N]
        best = q.masked_fill(torch.isin(known_by, ends), 0).topk(min(growth.width, q.shape[1]), -1)
        log_q, tokens = best.values.log(), known_by[best.indices]
    return log_q.masked_fill(~known, -torch.inf).cpu(), tokens.tolist()


def lay_out(roots: Sequence[Root], levels: Sequence[Sequence[Hypothesis]], rows: int) -> list[Path]:
    """Paths that cover the roots and as much of the tree as fits, the branches most likely needed first.

    A branch costs nothing where it goes on a path that ends at its parent; else it needs a row of its own.
    """
    paths = [Path(root, []) for root in roots]
    by_root = {root.hypothesis.tokens: root for root in roots}
    start = len(roots[0].hypothesis.tokens)
    tips = {root.hypothesis.tokens: path for root, path in zip(roots, paths, strict=True)}
    covered = set(by_root)
    for tokens in _by_need(levels, len(roots)):
        if tokens in covered:
            continue
        path = tips.pop(tokens[:-1], None)
        if path is None and len(paths) < rows:
            path = Path(by_root[tokens[:start]], list(tokens[start:-1]))
            paths.append(path)
        if path is not None:
            path.tail.append(tokens[-1])
            tips[tokens] = path
            covered |= {tokens[:k] for k in range(start, len(tokens) + 1)}
    return paths


def _by_need(levels: Sequence[Sequence[Hypothesis]], w: int) -> list[Tokens]:
    """A step needs w branches of a level: those first, level by level, then the drafter's next best."""
    ranked = [(rank >= w, level, rank, h.tokens) for level, hs in enumerate(levels) for rank, h in enumerate(hs)]
    return [tokens for *_, tokens in sorted(ranked)]
