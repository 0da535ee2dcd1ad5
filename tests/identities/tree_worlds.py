"""Small worlds in which every draw and every coin of a step with a tree can be gone through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from unittest import mock

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.sampling import Sampling
from outrider.core.token_tree import ROOT, TokenTree
from outrider.core.verification.tree import NodeRule, TreeDraft, one_by_one, walk
from outrider.decoding.tree_growth import Behind, GrowthRules, grow
from outrider.planning.tree_costs import Outlook

SIZE = 3
Prefix = tuple[int, ...]
Grow = Callable[[object, GrowthRules, int], TreeDraft]


@dataclass
class Chances:
    """Goes through all ways in which a program's draws can fall: each asks ``choose``, which branches."""

    script: list[int] = field(default_factory=list)  # what the draws of this run are to give
    made: list[list[float]] = field(default_factory=list)  # the chances of each
    chance: float = 1.0

    def choose(self, chances: Sequence[float]) -> int:
        place = len(self.made)
        if place == len(self.script):
            self.script.append(next(k for k, c in enumerate(chances) if c > 0))
        self.made.append(list(chances))
        self.chance *= chances[self.script[place]]
        return self.script[place]

    @staticmethod
    def all(program: Callable[[Chances], None]) -> Iterator[Chances]:
        """Every run of the program with a chance above zero."""
        script: list[int] | None = []
        while script is not None:
            run = Chances(list(script))
            program(run)
            yield run
            script = run.next_script()

    def next_script(self) -> list[int] | None:
        for place in reversed(range(len(self.made))):
            later = [k for k, c in enumerate(self.made[place]) if k > self.script[place] and c > 0]
            if later:
                return [*self.script[:place], later[0]]
        return None


@dataclass(frozen=True)
class Scripted(Noise):
    """Noise whose draws are chosen: by weights, each race on its own."""

    chances: Chances = field(default_factory=Chances)

    def winner(self, stream: str, at: Tensor, weights: Tensor, counter: Tensor | None = None) -> Tensor:
        distribution = (weights.flatten().double() / weights.double().sum()).tolist()
        return torch.tensor([[self.chances.choose(distribution)]])


@dataclass(frozen=True)
class TreeWorld:
    """p and q behind every text of up to ``depth`` tokens, and what trees may be."""

    p: dict[Prefix, Tensor]
    q: dict[Prefix, Tensor | int]  # an int: a point mass
    nodes: int
    depth: int
    floors: tuple[float, ...] = ()
    size: int = SIZE
    outlook: Outlook = Outlook()

    @staticmethod
    def random(seed: int, nodes: int, depth: int, sharpness: float = 1.5) -> TreeWorld:
        generator = torch.Generator().manual_seed(seed)
        texts = [x for n in range(depth + 1) for x in product(range(SIZE), repeat=n)]

        def distributions() -> dict[Prefix, Tensor]:
            drawn = torch.randn((len(texts), SIZE), generator=generator, dtype=torch.float64) * sharpness
            return dict(zip(texts, drawn.softmax(-1), strict=True))

        return TreeWorld(distributions(), dict(distributions()), nodes, depth)

    def rules(self, noise: Noise) -> GrowthRules:
        return GrowthRules(
            self.nodes, self.depth, self.size, Sampling(1.0), noise, True, outlook=self.outlook, floors=self.floors
        )


class WorldOracle:
    """Says what the world's q is behind the paths it is asked for."""

    def __init__(self, world: TreeWorld) -> None:
        self.world, self.texts = world, list[Prefix]([()])

    def behind(self, parents: Sequence[int], tokens: Sequence[int], draws: Noise, at: Tensor) -> list[Behind | None]:
        if tokens:
            self.texts = [(*self.texts[row], token) for row, token in zip(parents, tokens, strict=True)]
        return [self._law(self.world.q[text]) for text in self.texts]

    def _law(self, q: Tensor | int) -> Behind:
        return Behind(None, None, q) if isinstance(q, int) else Behind(q, None, -1)


def bare(tree: TokenTree) -> str:
    """What a tree looks like, for errors."""
    return ", ".join(str(tree.text(node)) for node in range(len(tree)))


def law_of_a_step(world: TreeWorld, rule: NodeRule = one_by_one, growing: Grow = grow) -> Tensor:
    """The joint distribution of depth + 1 tokens: a step, then the target's own continuation."""
    distribution = torch.zeros([SIZE] * (world.depth + 1), dtype=torch.float64)
    found: list[Prefix] = []

    def step(chances: Chances) -> None:
        noise = Scripted(torch.tensor([0]), chances=chances)

        def happens(chance: float, noise: Noise, stream: str, at: Tensor) -> bool:
            return chances.choose([chance, 1 - chance]) == 0

        draft = growing(WorldOracle(world), world.rules(noise), 0)
        tree = draft.tree
        with mock.patch("outrider.core.verification.tree.happens", happens):
            verdict = walk(draft, lambda node: world.p[tree.text(node)][None, None], rule, noise, 0)
        assert len(tree) <= world.nodes and verdict.healthy == len(verdict.path) + 1, bare(tree)
        found.append((*(tree.tokens[node] for node in verdict.path), verdict.token))

    for run in Chances.all(step):
        text = found.pop()
        for tail in product(range(SIZE), repeat=world.depth + 1 - len(text)):
            whole = (*text, *tail)
            after = 1.0
            for i in range(len(text), world.depth + 1):
                after *= float(world.p[whole[:i]][whole[i]])
            distribution[whole] += run.chance * after
    return distribution


def targets_law(world: TreeWorld) -> Tensor:
    distribution = torch.zeros([SIZE] * (world.depth + 1), dtype=torch.float64)
    for whole in product(range(SIZE), repeat=world.depth + 1):
        distribution[whole] = torch.stack([world.p[whole[:i]][whole[i]] for i in range(len(whole))]).prod()
    return distribution


def distance(world: TreeWorld, rule: NodeRule = one_by_one, growing: Grow = grow) -> float:
    """Total variation between the distribution of a step and the target's."""
    return float((law_of_a_step(world, rule, growing) - targets_law(world)).abs().sum() / 2)


def bias_of_candidates(world: TreeWorld) -> float:
    """How far the candidates behind the text that are kept are from draws without replacement, at the worst.

    Whichever come first, the next one that is kept must have q's distribution without them: else whether it is kept
    hangs on its token.
    """
    found: dict[Prefix, Tensor] = {}
    trees: list[Prefix] = []

    def grown(chances: Chances) -> None:
        tree = grow(WorldOracle(world), world.rules(Scripted(torch.tensor([0]), chances=chances)), 0).tree
        trees.append(tuple(tree.tokens[node] for node in tree.children(ROOT)))

    for run in Chances.all(grown):
        kept = trees.pop()
        for place, token in enumerate(kept):
            found.setdefault(kept[:place], torch.zeros(world.size, dtype=torch.float64))[token] += run.chance
    q, worst = world.q[()], 0.0
    assert isinstance(q, Tensor)
    for before, kept in found.items():
        left = q.double().clone()
        left[list(before)] = 0
        worst = max(worst, float((kept / kept.sum() - left / left.sum()).abs().max()))
    return worst
