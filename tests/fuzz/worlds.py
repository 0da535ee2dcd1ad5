"""Worlds for the fuzzer: a toy model, options, a drafter, a coupling, a policy and neighbours, all plain records.

``repr(world)`` is Python: paste it into ``check_...(World(...))`` beside ``from worlds import *``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan

import torch
from hostile import Hostile
from reference import Ends, Grammar, Lift, NoRepeat, Reference, Strict, text_of

from outrider.core.protocols import Drafter, Verifier
from outrider.core.sampling import Sampling
from outrider.core.verification.choose import choose
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import (
    Cascade,
    Copying,
    Fallback,
    Mixture,
    ModelDrafter,
    Ngram,
    Nothing,
    Standardised,
    Suffix,
    SuffixIndex,
    Uniform,
)
from outrider.models.toy import ToyModel
from outrider.planning.policies import Auto, Gradient, Planner, Policy, Setting

__all__ = [
    "Alone", "Ends", "Grammar", "Hostile", "Lift", "Model", "Named", "NoRepeat", "Over", "Own", "Planned", "Sampling",
    "Strict", "Toy", "Two", "World", "inf",
]  # fmt: skip


@dataclass(frozen=True)
class Toy:
    """The target: logits by the last ``order`` tokens."""

    vocab: int = 4
    order: int = 1
    seed: int = 0
    sharpness: float = 1.0
    dead: tuple[int, ...] = ()  # tokens it never gives: padding rows of a vocabulary
    broken: tuple[int, ...] = ()  # tokens behind which its logits are not numbers

    def build(self) -> ToyModel:
        model = ToyModel(self.vocab, self.order, self.seed, self.sharpness)
        for token in self.dead:
            model.table[:, token] = -inf
        for token in self.broken:
            model.table[token :: self.vocab] = nan
        return model


@dataclass(frozen=True)
class Named:
    """A drafter without a model."""

    name: str  # copy, ngram, suffix, uniform or none
    shared = False

    def build(self, target: ToyModel) -> Drafter:
        made: dict[str, Drafter] = {
            "copy": Copying(shortest=1, longest=3),
            "ngram": Ngram(order=3),
            "suffix": Suffix(SuffixIndex.of([[0, 1, 0, 2, 1, 0, 1, 2]]), shortest=1, floor=0.05),
            "uniform": Uniform(),
            "none": Nothing(),
        }
        return made[self.name]


@dataclass(frozen=True)
class Model:
    """Another toy as the draft model."""

    seed: int
    distance: float = 1.0  # from the target
    vocab: int = 0  # tokens it has fewer (or, below zero, more) than the target
    knows: tuple[int, ...] = ()  # the only tokens it gives; (): all
    floor: float = 0.0
    own: Sampling | None = None
    shared = False

    def build(self, target: ToyModel) -> ModelDrafter:
        size = max(2, target.vocab_size - self.vocab)
        if size == target.vocab_size:
            model = target.near(self.distance, self.seed)
        else:
            model = ToyModel(size, 1, self.seed, 1 + self.distance)
        known = {t % size for t in self.knows}
        if known:
            model.table[:, [t for t in range(size) if t not in known]] = -inf
        return ModelDrafter(_Clamped(model), "model", sampling=self.own, floor=self.floor)


class _Clamped(ToyModel):
    """A toy that may be told tokens it does not have, as a draft model with a smaller vocabulary is."""

    def __init__(self, model: ToyModel) -> None:
        self.__dict__ |= model.__dict__

    def states(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().states(tokens.clamp(max=self.vocab_size - 1))


@dataclass(frozen=True)
class Two:
    """A fallback or a mixture of two drafters."""

    kind: str
    first: Spec
    second: Spec
    cost: float = 0.1

    @property
    def shared(self) -> bool:
        return self.first.shared or self.second.shared

    def build(self, target: ToyModel) -> Drafter:
        first, second = build(self.first, target), build(self.second, target)
        return Fallback(first, second) if self.kind == "fallback" else Mixture(first, second, self.cost)


@dataclass(frozen=True)
class Over:
    """A cascade: ``lower`` drafts for ``middle``."""

    lower: Spec
    middle: Model
    guesses: int = 2
    once: bool = False

    @property
    def shared(self) -> bool:
        return self.lower.shared

    def build(self, target: ToyModel) -> Drafter:
        return Cascade(build(self.lower, target), self.middle.build(target), guesses=self.guesses, once=self.once)


@dataclass(frozen=True)
class Own:
    """A drafter with sampling options of its own."""

    inner: Spec
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    @property
    def shared(self) -> bool:
        return self.inner.shared

    def build(self, target: ToyModel) -> Drafter:
        return Standardised(build(self.inner, target), self.temperature, self.top_k, self.top_p)


Spec = Named | Model | Hostile | Two | Over | Own


def build(spec: Spec, target: ToyModel) -> Drafter:
    return spec if isinstance(spec, Hostile) else spec.build(target)


@dataclass(frozen=True)
class Planned:
    """A policy: auto at a given cost (below zero: at the declared ones), gradient, or another gamma in every run."""

    kind: str
    cost: float = 0.1

    def build(self) -> Policy:
        if self.kind == "auto":
            return Auto(self.cost) if self.cost >= 0 else Auto(clock=False)
        return Gradient(abs(self.cost)) if self.kind == "gradient" else _Turns()


class _Turns:
    """A row asks for 0, 1, 2 ... guesses in turn, one more or less by what its own last run kept."""

    def start(self, setting: Setting) -> Planner:
        return _TurnsPlanner(setting)


class _TurnsPlanner:
    def __init__(self, setting: Setting) -> None:
        self.limit, self.next = setting.limit, [0] * setting.rows

    def admit(self, row: int) -> None:
        self.next[row] = 1

    def choose(self, row: int) -> int:
        return self.next[row] % (self.limit + 1)

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        self.next[row] += 1 + accepted

    def timed(self, step: object) -> None:
        """Clocks are of no interest."""


@dataclass(frozen=True)
class Alone:
    """One request."""

    prompt: tuple[int, ...]
    seed: int
    new: int


@dataclass(frozen=True)
class World:
    """Everything a text may depend on, and what it must not depend on."""

    toy: Toy
    sampling: Sampling
    ends: Ends
    prompt: tuple[int, ...]
    drafter: Spec
    coupling: str = "maximal"
    lenience: float = 1.0
    gamma: int | Planned = 2
    width: int = 4
    slots: int = 3
    beside: tuple[Alone, ...] = ()

    def __post_init__(self) -> None:
        assert isinstance(self.gamma, Planned) or self.gamma < self.width

    @cached_property
    def target(self) -> ToyModel:
        return self.toy.build()

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.target.table.tolist(), self.toy.order, self.sampling, self.ends)

    @property
    def verifier(self) -> Verifier:
        return choose(self.coupling, self.sampling.greedy, self.lenience)

    @property
    def one_text(self) -> bool:
        """Whether a seed alone decides the text: at temperature 0, and where target and draft share their noise."""
        return self.verifier.exact and self.verifier.shares_noise

    @property
    def first_seed(self) -> int:
        """New in every world, the same whenever it is repeated."""
        return int.from_bytes(hashlib.blake2b(repr(self).encode(), digest_size=7).digest(), "big")

    def request(self, seed: int, prompt: tuple[int, ...] = (), new: int = 0) -> Request:
        ends = self.ends
        stopping = Stopping(new or ends.new, frozenset(ends.eos), ends.stop, decode=text_of)
        return Request(prompt or self.prompt, stopping, seed)

    def decoder(self, slots: int, plain: bool = False) -> Decoder:
        policy = self.gamma.build() if isinstance(self.gamma, Planned) else self.gamma
        drafter = Nothing() if plain else build(self.drafter, self.target)
        return Decoder(
            self.target, drafter, self.verifier, self.sampling, 0 if plain else policy, self.width, slots
        )  # fmt: skip
