"""Step runners on tiny models with every drafter and rule, and what they emit: for tests of steps that are replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch

import tiny
from helpers import wrapped
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.block import block_coupling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.lenient import lenient
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.drafters import (
    Cascade,
    Copying,
    Fallback,
    Mixture,
    ModelDrafter,
    Ngram,
    NgramTable,
    Nothing,
    Standardised,
    Uniform,
)
from outrider.drafters.base import ContextSession
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.drafters.known_text import KnownText

SHAPE = Shape(capacity=256, width=5, source_capacity=64, chunk=8)
GREEDY = Rule(gumbel_coupling, Sampling())
RULES = {
    "greedy": GREEDY,
    "gumbel": Rule(gumbel_coupling, Sampling(1.0)),
    "maximal": Rule(maximal_coupling, Sampling(1.0)),
    "filtered": Rule(maximal_coupling, Sampling(0.8, top_k=40, top_p=0.9, min_p=0.01)),
    "block": Rule(block_coupling, Sampling(1.0)),
    "lenient": Rule(lenient(0.5), Sampling(1.0)),
    "ends late": Rule(gumbel_coupling, Sampling(1.0, min_tokens=6, withheld={4: -torch.inf, 5: -torch.inf})),
    "penalised": Rule(
        gumbel_coupling, Sampling(0.7, repetition_penalty=1.2, frequency_penalty=0.5, logit_bias={5: 2.0})
    ),
}


class _Liar(ContextSession):
    """Guesses what it has read off the device."""

    capturable = True

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: torch.Tensor) -> Draft:
        guess = int(self.context.lengths.max()) % self.vocab_size
        return Draft(torch.full_like(at[:, :gamma], guess), None, torch.ones_like(at[:, :gamma], dtype=torch.bool))


class _Drafter:
    def __init__(self, kind: type[ContextSession]) -> None:
        self.kind, self.name = kind, kind.__name__

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return self.kind(rows, shape, target)  # type: ignore[return-value]


class _Unmarked(_Liar):
    capturable = False


def head() -> HeadDrafter:
    torch.manual_seed(3)
    config = HeadConfig("feature", 32, 64, 1, layers=(1, -1), heads=(4, 2), gamma=3)
    return HeadDrafter(Head(config), torch.arange(0, tiny.VOCAB, 2), floor=0.0)  # a floor asks, on a CPU


def drafter(name: str, family: str = "llama") -> Drafter:
    text = torch.arange(200).remainder(tiny.VOCAB)
    made: dict[str, Callable[[], Drafter]] = {
        "other": lambda: ModelDrafter(wrapped(family, seed=1)),
        "self": lambda: ModelDrafter(wrapped(family)),
        "none": Nothing,
        "copy": Copying,
        "uniform": Uniform,
        "ngram": Ngram,
        "table": lambda: Ngram(NgramTable.fit([text.tolist()], tiny.VOCAB, order=3)),
        "known text": lambda: KnownText(text.expand(2, -1), 0.3),
        "standardised": lambda: Standardised(ModelDrafter(wrapped(family, seed=1)), temperature=0.5),
        "head": head,
        "fallback": lambda: Fallback(Copying(), head()),
        "mixture": lambda: Mixture(Copying(), head()),
        "cascade": lambda: Cascade(Copying(), ModelDrafter(wrapped(family, seed=1))),
        "liar": lambda: _Drafter(_Liar),
        "unmarked": lambda: _Drafter(_Unmarked),
    }
    return made[name]()


def runner(name: str, family: str = "llama", graphs: bool = True) -> StepRunner:
    made = StepRunner((wrapped(family), drafter(name, family)), 2, SHAPE, graphs)
    if name == "fallback":
        made.drafter.session.asks = False  # type: ignore[union-attr]  # as on a GPU
    if name == "mixture":
        made.drafter.session.on_cpu = False  # type: ignore[union-attr]
    for row, prompt in enumerate(([3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [9])):
        source = (4, 5, 6) if family in tiny.ENCODER_DECODER else None
        made.target.admit(row, prompt, source)
        made.drafter.admit(row, prompt, source)
        made.seeds[row] = row
    return made


def steps(made: StepRunner, rule: Rule, gammas: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[], []]
    for gamma in gammas:
        host = made.launch(rule, gamma).read()
        for row in range(2):
            found[row] += host.row(row)[0]
    assert made.drafter.error is None
    return found
