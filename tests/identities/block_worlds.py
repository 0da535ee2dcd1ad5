"""Small worlds in which every draft and every outcome of the noise can be gone through, for block verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import prod
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Verdict
from outrider.core.verification.block import block_coupling

SIZE = 3
Prefix = tuple[int, ...]


class Chosen(Noise):
    """Noise whose uniforms are given, whichever run asks."""

    def __init__(self, r: Tensor) -> None:
        super().__init__(torch.arange(r.shape[0]))
        object.__setattr__(self, "r", r)

    def of_run(self, at: Tensor) -> Noise:
        return self

    def uniform(self, stream: str, at: Tensor) -> Tensor:
        assert stream == "accept"
        return self.r[:, : at.shape[1]]  # type: ignore[attr-defined,no-any-return]


@dataclass(frozen=True)
class World:
    """p after every prefix of up to gamma tokens, q after every prefix of fewer, and where the draft stops."""

    gamma: int
    p: dict[Prefix, Tensor]
    q: dict[Prefix, Tensor]
    stops: frozenset[Prefix] = frozenset()

    def drafts(self) -> list[Prefix]:
        """Everything the drafter may propose: paths of positive probability down to a stop or to gamma guesses."""
        ways: list[Prefix] = [()]
        done: list[Prefix] = []
        while ways:
            x = ways.pop()
            if len(x) == self.gamma or x in self.stops:
                done.append(x)
            else:
                ways += [(*x, token) for token in range(SIZE) if self.q[x][token] > 0]
        return done

    def chance(self, x: Prefix) -> float:
        """The probability of drafting x, or of being on the way through it."""
        return prod(float(self.q[x[:i]][x[i]]) for i in range(len(x)))

    def ratios(self, x: Prefix) -> list[float]:
        return [float(self.p[x[:i]][x[i]] / self.q[x[:i]][x[i]]) for i in range(len(x))]

    def row(self, x: Prefix, dense: bool = True) -> tuple[Tensor, Draft]:
        """What the rule is shown for this draft: p [1, G+1, V] and the draft, padded with token 0."""
        padded = (*x, *[0] * (self.gamma - len(x)))
        p = torch.stack([self.p[padded[:i]] for i in range(self.gamma + 1)])[None]
        q = torch.stack([self.q[padded[:i]] for i in range(self.gamma)])[None]
        proposed = (torch.arange(self.gamma) < len(x))[None]
        return p, Draft(torch.tensor([padded]), q if dense else None, proposed)


def thresholds(world: World, x: Prefix) -> list[float]:
    """h_1..h_len(x) by the paper's words, one at a time: the slow obvious version."""
    w, h = 1.0, []
    for i, ratio in enumerate(world.ratios(x), 1):
        w = min(1.0, w * ratio)
        if i == len(x):
            h.append(w)
            continue
        mass = sum(max(0.0, w * float(world.p[x[:i]][y]) - float(world.q[x[:i]][y])) for y in range(SIZE))
        h.append(mass / (mass + 1 - w) if mass + 1 - w > 1e-15 else 1.0)
    return h


def outcomes(
    world: World, x: Prefix, rule: Callable[..., Verdict], dense: bool = True
) -> list[tuple[float, int, Tensor]]:
    """(probability, n, distribution of t) for every way the uniforms can fall around their thresholds.

    The rule itself is asked with every uniform just below or just above its threshold, so a threshold that is not
    the paper's shows; so do the weights t is drawn from.
    """
    h, found = thresholds(world, x), []
    p, draft = world.row(x, dense)
    at = torch.arange(world.gamma + 1)[None]
    for below in product((True, False), repeat=len(x)):
        chance = prod(a if b else 1 - a for a, b in zip(h, below, strict=True))
        if chance <= 1e-12:
            continue
        r = [a * (1 - 1e-9) if b else a * (1 + 1e-9) + 1e-12 for a, b in zip(h, below, strict=True)]
        noise = Chosen(torch.tensor([[*r, *[0.5] * (world.gamma - len(x))]], dtype=torch.float64))
        with mock.patch.object(Noise, "winner", autospec=True, side_effect=Noise.winner) as drawn:
            verdict = rule(p, draft, noise, at)
        rest = drawn.call_args.args[3][0, 0]
        found.append((chance, int(verdict.accepted), rest / rest.sum()))
    return found


def emitted_distribution(
    world: World, rule: Callable[..., Verdict] = block_coupling.rule, dense: bool = True
) -> Tensor:
    """The joint distribution of gamma + 1 tokens: n guesses, t, and the target's own continuation."""
    distribution = torch.zeros([SIZE] * (world.gamma + 1), dtype=torch.float64)
    for x in world.drafts():
        for chance, n, rest in outcomes(world, x, rule, dense):
            for tail in product(range(SIZE), repeat=world.gamma + 1 - n):
                text = (*x[:n], *tail)
                after = prod(float(world.p[text[:i]][text[i]]) for i in range(n + 1, world.gamma + 1))
                distribution[text] += world.chance(x) * chance * float(rest[tail[0]]) * after
    return distribution


def target_distribution(world: World) -> Tensor:
    distribution = torch.zeros([SIZE] * (world.gamma + 1), dtype=torch.float64)
    for text in product(range(SIZE), repeat=world.gamma + 1):
        distribution[text] = prod(float(world.p[text[:i]][text[i]]) for i in range(world.gamma + 1))
    return distribution


def expected(world: World, dense: bool = True) -> tuple[float, float]:
    """Expected guesses kept: jointly, by the rule itself, and token by token, by Leviathan's min(1, p/q)."""
    jointly = token_wise = 0.0
    for x in world.drafts():
        ways = outcomes(world, x, block_coupling.rule, dense)
        jointly += world.chance(x) * sum(chance * n for chance, n, _ in ways)
        ratios = [min(1.0, ratio) for ratio in world.ratios(x)]
        token_wise += world.chance(x) * sum(prod(ratios[: i + 1]) for i in range(len(x)))
    return jointly, token_wise


def prefixes(longest: int) -> list[Prefix]:
    return [x for length in range(longest + 1) for x in product(range(SIZE), repeat=length)]


@st.composite
def worlds(draw_: st.DrawFn, gamma: int, ragged: bool = False) -> World:
    """Small integer weights: zeros, ties and point masses come up all the time."""

    def distribution() -> Tensor:
        weights = draw_(st.lists(st.integers(0, 4), min_size=SIZE, max_size=SIZE).filter(any))
        values = torch.tensor(weights, dtype=torch.float64)
        return values / values.sum()

    p = {x: distribution() for x in prefixes(gamma)}
    q = {x: distribution() for x in prefixes(gamma - 1)}
    stops = frozenset(x for x in q if ragged and draw_(st.booleans()))
    return World(gamma, p, q, stops)


def random_world(gamma: int, seed: int, near: float = 1.0) -> World:
    chance = torch.Generator().manual_seed(seed)

    def logits() -> Tensor:
        return torch.randn(SIZE, generator=chance, dtype=torch.float64)

    base = {x: logits() for x in prefixes(gamma)}
    q = {x: (base[x] + near * logits()).softmax(-1) for x in prefixes(gamma - 1)}
    return World(gamma, {x: v.softmax(-1) for x, v in base.items()}, q)
