"""Growing a tree of guesses: best first, by the drafter's own probabilities, a level at a time.

A place in the tree, candidate j behind a node, has a value before anybody knows its token: the chance of the node times
what the j-th largest probability of q behind it lets expect (``Outlook``). Values fall along a path and from one
candidate to the next, so that the best places form a tree. Whether a place is taken depends on the places before it
alone, never on the token that is drawn for it or on what follows that token (``promising``): with maximal coupling
anything else would bias the text. For the same reason candidates behind each node are drawn from noise of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, repeat
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from outrider.core.abilities import forkable
from outrider.core.model_facts import CPU
from outrider.core.noise import Noise, counter_of, row_seeds
from outrider.core.protocols import Draft, DraftSession
from outrider.core.sampling import Sampling
from outrider.core.token_tree import ROOT, TokenTree
from outrider.core.verification.tree import Probabilities, TreeDraft
from outrider.planning.tree_costs import Outlook

FIRST_CANDIDATE = 0.5
"""A chance that first candidates often have: what is not worth its time with it is not asked for."""


@dataclass(frozen=True)
class GrowthRules:
    """What a tree may be, and how its candidates are drawn."""

    nodes: int  # at most
    depth: int  # levels at most
    vocab_size: int
    sampling: Sampling  # the target's; at temperature 0 the likeliest tokens are the candidates
    noise: Noise  # of the one row: the target's own, or with ``own_noise`` a stream that is independent of it
    own_noise: bool = False
    outlook: Outlook = Outlook()
    floors: Sequence[float] = ()  # the least value of the first place, the second ...; none: 0
    ends: frozenset[int] = frozenset()  # tokens behind which nothing is guessed


@dataclass(frozen=True)
class TreePlace:
    """Candidate number ``rank`` behind a node. Places in order: the best first, parents before their children."""

    value: float
    depth: int
    parent: int
    rank: int

    @property
    def key(self) -> tuple[float, int, int, int]:
        return -self.value, self.depth, self.parent, self.rank


@dataclass(frozen=True)
class Behind:
    """What a drafter says of the token behind a node."""

    weights: Tensor | None  # q [N] of the tokens it knows; None: it is sure of one token
    tokens: Tensor | None  # [N] ascending; None: all
    sure: int  # that token

    @staticmethod
    def of(draft: Draft, row: int) -> Behind | None:
        if draft.tokens.shape[1] == 0 or not bool(draft.proposed[row, 0]):
            return None
        if draft.probs is None:
            return Behind(None, None, int(draft.tokens[row, 0]))
        return Behind(draft.probs[row, 0].float(), draft.support, -1)

    def values(self, most: int) -> list[float]:
        """The largest probabilities, largest first."""
        if self.weights is None:
            return [1.0]
        best = self.weights.topk(min(most, len(self.weights))).values.tolist()
        return [value for value in best if value > 0]

    def drawn(self, count: int, rules: GrowthRules, noise: Noise, at: Tensor) -> list[int]:
        """So many candidates, without replacement."""
        if self.weights is None:
            return [self.sure]
        if rules.sampling.greedy:
            places = self.weights.topk(count).indices.tolist()
        else:
            left, places = self.weights.clone(), list[int]()
            counter = None if self.tokens is None else counter_of(self.tokens)
            for _ in range(count):  # who arrives next in the same race is a draw from the rest
                places.append(int(noise.winner("token", at, left[None, None], counter)))
                left[places[-1]] = 0
        return places if self.tokens is None else self.tokens[places].tolist()

    def probabilities(self, size: int) -> Probabilities | None:
        if self.weights is None:
            return None
        whole = np.zeros(size)
        whole[slice(len(self.weights)) if self.tokens is None else self.tokens.numpy()] = self.weights.numpy()
        return whole


class Oracle(Protocol):
    """Says what follows paths of guesses: a drafter behind forks of its session, one level after another."""

    def behind(self, parents: Sequence[int], tokens: Sequence[int], draws: Noise, at: Tensor) -> list[Behind | None]:
        """Go on from rows ``parents`` of the last answer, each with its token; no tokens: behind the text itself."""


class ForkedOracle:
    """Asks a drafting session and a fork of it, all nodes of a level at once. Everything else is on the host."""

    def __init__(self, session: DraftSession, rules: GrowthRules, device: torch.device = CPU) -> None:
        """``device``: of the session."""
        self.session, self.ahead, self.rules, self.device = session, session, rules, device
        # At temperature 0 q is what ranks candidates.
        self.sampling = replace(rules.sampling, temperature=1.0) if rules.sampling.greedy else rules.sampling

    def behind(self, parents: Sequence[int], tokens: Sequence[int], draws: Noise, at: Tensor) -> list[Behind | None]:
        if tokens:
            rows, new = (torch.tensor(each).to(self.device) for each in (parents, tokens))
            if self.ahead is self.session:
                self.ahead = forkable(self.session, "tree").fork(rows)
            else:
                self.ahead.select(rows)
            self.ahead.commit(new[:, None], torch.ones_like(new))
        at, draws = torch.cat([at, at + 1], 1).to(self.device), replace(draws, seeds=draws.seeds.to(self.device))
        draft = self.ahead.propose(1, self.sampling, draws, at).usable(self.rules.vocab_size).on(CPU)
        return [Behind.of(draft, row) for row in range(len(at))]


@dataclass
class _Nodes:
    """What was drawn so far. Node numbers are those of the order they were drawn in."""

    tokens: list[int] = field(default_factory=list)
    places: list[TreePlace] = field(default_factory=list)

    def text(self, node: int) -> tuple[int, ...]:
        return () if node == ROOT else (*self.text(self.places[node].parent), self.tokens[node])


def grow(oracle: Oracle, rules: GrowthRules, start: int) -> TreeDraft:
    """The best places up to so many, each with its token; start: the position behind the text."""
    nodes, found, places = _Nodes(), dict[int, Behind](), list[TreePlace]()
    frontier: list[int] = [ROOT]
    rows: dict[int, int] = {ROOT: 0}  # of the oracle's last answer
    for level in range(rules.depth):
        at = torch.full((len(frontier), 1), start + level)
        draws = [_noise(rules, nodes.text(node)) for node in frontier]
        joint = replace(draws[0], seeds=torch.cat([each.seeds for each in draws]))
        parents = [rows[nodes.places[node].parent] for node in frontier if node != ROOT]
        answers = oracle.behind(parents, [nodes.tokens[node] for node in frontier if node != ROOT], joint, at)
        rows = {node: row for row, node in enumerate(frontier)}
        for node, answer in zip(frontier, answers, strict=True):
            if answer is not None:
                found[node] = answer
                value = 1.0 if node == ROOT else nodes.places[node].value
                chances = enumerate(rules.outlook.chances(answer.values(rules.nodes)))
                places += [TreePlace(value * chance, level + 1, node, rank) for rank, chance in chances]
        places = best(places, rules)
        drawn = list[int]()
        for node, noise in zip(frontier, draws, strict=True):
            own = [place for place in places if place.parent == node]
            for place, token in zip(own, _tokens(found, node, len(own), rules, noise, start + level), strict=True):
                drawn.append(len(nodes.tokens))
                nodes.tokens.append(token)
                nodes.places.append(place)
        asked = promising(places, rules)
        frontier = [node for node in drawn if nodes.tokens[node] not in rules.ends and nodes.places[node] in asked]
        if not frontier:
            break
    return _finished(nodes, found, set(places), rules.vocab_size)


def best(places: Sequence[TreePlace], rules: GrowthRules) -> list[TreePlace]:
    """The first places in their order: as many as there may be, and none behind one that is below its floor."""
    kept = sorted(places, key=lambda place: place.key)[: rules.nodes]
    for number, (place, floor) in enumerate(zip(kept, rules.floors, strict=False)):
        if place.value < floor:
            return kept[:number]
    return kept


def promising(places: Sequence[TreePlace], rules: GrowthRules) -> set[TreePlace]:
    """Those of the best places that may have a child among them, whose drafter is asked for it.

    What stands behind a place may hang on its token. So where candidates are judged by q, it decides nothing: of a full
    tree only those are left out that can have no child in it. Where tokens are matched any tree is exact.
    """
    worst = places[-1].value if len(places) == rules.nodes else 0.0
    entering = 1.0 if rules.own_noise else FIRST_CANDIDATE
    behind = list(accumulate(reversed(rules.floors[1:]), min))[::-1]  # the least floor behind each place
    return {
        place
        for place, floor in zip(places, chain(behind, repeat(0.0)), strict=False)
        if place.value * entering > worst and place.value * FIRST_CANDIDATE > floor
    }


def _noise(rules: GrowthRules, text: tuple[int, ...]) -> Noise:
    """What the candidates behind these guesses are drawn from."""
    if not rules.own_noise:
        return rules.noise
    seeds = row_seeds(int(rules.noise.seeds[0]), [text])
    return replace(rules.noise, seeds=torch.tensor(seeds))


def _tokens(
    found: Mapping[int, Behind], node: int, count: int, rules: GrowthRules, noise: Noise, position: int
) -> list[int]:
    return found[node].drawn(count, rules, noise, torch.tensor([[position]])) if count else []


def _finished(nodes: _Nodes, found: Mapping[int, Behind], kept: set[TreePlace], size: int) -> TreeDraft:
    """The places that are kept as a tree: each path of first candidates lies in one piece."""
    children: dict[int, list[int]] = {}
    for node, place in enumerate(nodes.places):
        if place in kept:
            children.setdefault(place.parent, []).append(node)
    order, waiting = list[int](), list(reversed(children.get(ROOT, [])))
    while waiting:
        order.append(node := waiting.pop())
        waiting += reversed(children.get(node, []))
    number = {ROOT: ROOT, **{node: place for place, node in enumerate(order)}}
    parents = tuple(number[nodes.places[node].parent] for node in order)
    known = {number[node]: found[node] for node in children}
    return TreeDraft(
        TokenTree(tuple(nodes.tokens[node] for node in order), parents), lambda node: known[node].probabilities(size)
    )
