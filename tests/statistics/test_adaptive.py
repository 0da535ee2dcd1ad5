"""The distribution with gamma and drafter chosen online, and rules that look where they must not: those must be caught.

The planner decides on the host, row by row, so these go through the decoder. The noise of a discarded guess is
used again when its position comes up, which is why looking at one biases the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from distributions import PROMPT, TARGET, VOCAB, check_distribution
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.prices import Ladder, Prices
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling, standardise
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Mixture, ModelDrafter, Ngram, NgramTable, mixture
from outrider.planning.policies import Auto, Fixed, Gradient, Planner, Policy, Setting
from outrider.planning.step_clock import Timing
from outrider.testing import assert_same_distribution, counts_of, exact_distribution
from outrider.theory import Costs
from outrider.trace import Trace

CONSTANT = Ngram(NgramTable.fit([[1, 2, 0, 1, 3, 4, 4, 2, 1, 0, 2, 2]], VOCAB, order=1))
"""Draws from the same q everywhere: a discarded guess comes again, token for token, when its position does."""

NEAR = ModelDrafter(TARGET.near(0.5), "near")
LENGTH, COUNT = 2, 10_000  # the first run decides how the second token is drafted


def texts(drafter: Drafter, policy: Policy, seeds: Sequence[int], verifier: Any = maximal_coupling) -> Tensor:
    """The first tokens of a request per seed, all rows in one batch -> [N, LENGTH]."""
    decoder = Decoder(TARGET, drafter, verifier, Sampling(1.0), policy, width=3, slots=len(seeds))
    requests = [Request(PROMPT, Stopping(LENGTH), seed) for seed in seeds]
    rows = {event.index: event.row.tokens for event in decoder.stream(requests, Trace())}
    return torch.tensor([rows[i] for i in range(len(seeds))])


def check(tokens: Tensor, detects: float = 0.075) -> None:
    assert_same_distribution(
        counts_of(tokens, VOCAB), exact_distribution(TARGET, Sampling(1.0), PROMPT, LENGTH), detects=detects
    )


def caught(tokens: Tensor) -> None:
    with pytest.raises(AssertionError, match="not the expected distribution"):
        check(tokens)


@pytest.mark.parametrize("policy", [Auto(0.5), Auto(), Gradient(0.3, rate=9.0)], ids=["auto", "timed", "gradient"])
def test_adaptive_gamma_keeps_the_distribution(policy: Policy) -> None:
    """Catches a choice of gamma that knows anything of the draw it is made for."""
    check(texts(CONSTANT, policy, range(COUNT)))


@pytest.mark.parametrize("name", ["copy+near", "copy+table", "copy+near, dear"])
def test_mixtures_keep_the_distribution(name: str) -> None:
    """Catches a choice between drafters that depends on what they drew."""
    second = CONSTANT if "table" in name else NEAR
    mixed = Mixture(Copying(shortest=1, longest=3), second, cost=0.4 if "dear" in name else 0.05)
    check_distribution(mixed, maximal_coupling, rows=40_000, detects=0.035)


@pytest.mark.parametrize("costs", [0.5, Costs(lambda width: 1 + 0.15 * (width - 1), 0.1)], ids=["dear", "wide"])
def test_everything_at_once_keeps_the_distribution(costs: float | Costs) -> None:
    """Planner, mixture and early stop together, as ``draft="auto", gamma="auto"`` runs them; both couplings."""
    mixed = Mixture(Copying(shortest=1, longest=3), ModelDrafter(TARGET.near(0.5), "near", floor=0.3))
    for verifier in (maximal_coupling, gumbel_coupling):
        check(texts(mixed, Auto(costs), range(COUNT // 2), verifier), detects=0.11)


class Priced:
    """A model that ends its drafts by prices, which differ from row to row."""

    name = "priced"

    def __init__(self) -> None:
        self.made: list[int] = []

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session: Any = ModelDrafter(TARGET.near(0.5), "near", floor=0.1).start(rows, shape, target)
        ladder = Ladder.of(Costs(lambda width: 1 + 0.15 * (width - 1), 0.1), shape.width)
        session.prices = Prices(ladder, [0.5 + row % 4 / 2 for row in range(40_000)], [0.5] * 40_000)
        real = session.propose

        def propose(*arguments: Any) -> Draft:
            draft: Draft = real(*arguments)
            self.made += draft.proposed.sum(1).tolist()
            return draft

        session.propose = propose
        return session  # type: ignore[no-any-return]


def test_stopping_by_prices_keeps_the_distribution() -> None:
    priced = Priced()
    check_distribution(priced, maximal_coupling, rows=40_000, detects=0.035)
    shares = {guesses: priced.made.count(guesses) / len(priced.made) for guesses in set(priced.made)}
    assert sum(share > 0.1 for share in shares.values()) > 1, f"drafts were all alike: {shares}"


@pytest.mark.parametrize("floor", [0.15, 0.4])
def test_stopping_on_low_confidence_keeps_the_distribution(floor: float) -> None:
    check_distribution(
        ModelDrafter(TARGET.near(0.5), "near", floor=floor), maximal_coupling, rows=40_000, detects=0.035
    )


# --- mutants -----------------------------------------------------------------------------------------


class Spy:
    """A drafter that lets a policy see every guess, committed or not."""

    name = "spy"

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.guesses: list[list[int]] = []

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session: Any = self.drafter.start(rows, shape, target)
        real = session.propose

        def propose(*arguments: Any) -> Draft:
            draft: Draft = real(*arguments)
            self.guesses = draft.tokens.tolist()
            return draft

        session.propose = propose
        return session  # type: ignore[no-any-return]


class Peeking:
    """Drafts, unless the guess that was discarded for the coming position was token 2."""

    def __init__(self, spy: Spy) -> None:
        self.spy = spy

    def start(self, setting: Setting) -> Planner:
        return _PeekingPlanner(self.spy, setting)


class _PeekingPlanner:
    def __init__(self, spy: Spy, setting: Setting) -> None:
        self.spy, self.next = spy, [setting.limit] * setting.rows

    def admit(self, row: int) -> None: ...

    def choose(self, row: int) -> int:
        return self.next[row]

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        behind = self.spy.guesses[row][accepted + 1 :] if asked else []
        self.next[row] = 0 if behind and behind[0] == 2 else 2

    def timed(self, step: Timing) -> None: ...


def test_a_policy_that_looks_at_discarded_guesses() -> None:
    """Catches a distribution test blind to the bias of peeking."""
    spy = Spy(CONSTANT)
    caught(texts(spy, Peeking(spy), range(COUNT)))


class Neighbours(Fixed):
    """Odd rows draft only where the row before them, which has the same seed and is ahead, had a guess rejected."""

    def __init__(self) -> None:
        super().__init__(2)
        object.__setattr__(self, "kept", {})

    def choose(self, row: int) -> int:
        if row % 2 == 0:
            return 2
        kept: dict[int, list[int]] = self.kept  # type: ignore[attr-defined]
        return 0 if row not in kept or kept[row - 1][0] == 2 else 2

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        self.kept.setdefault(row, []).append(accepted)  # type: ignore[attr-defined]


def test_a_policy_that_learns_from_a_row_with_the_same_seed() -> None:
    """Catches acceptance shared between rows: one seed serves all prompts of a call, so rows share their noise."""
    seeds = [seed for seed in range(COUNT) for _ in range(2)]
    tokens = texts(CONSTANT, Neighbours(), seeds)
    check(tokens[0::2])
    caught(tokens[1::2])


class Withdrawing:
    """Proposes only guesses its own q finds likely: whether x is proposed depends on x."""

    name = "withdrawing"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session: Any = NEAR.start(rows, shape, target)
        real = session.propose

        def propose(*arguments: Any) -> Draft:
            draft: Draft = real(*arguments)
            likely = (draft.of_tokens() >= 0.3).to(torch.int64).cumprod(1).bool()
            return Draft(draft.tokens, draft.probs, draft.proposed & likely)

        session.propose = propose
        return session  # type: ignore[no-any-return]


class AskingTheTarget:
    """Proposes only guesses that the target finds likely."""

    name = "asking"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session: Any = NEAR.start(rows, shape, target)
        real = session.propose
        oracle = TARGET.start(rows, shape)
        oracle.context = target.context

        def propose(gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
            draft: Draft = real(gamma, sampling, noise, at)
            oracle.context, oracle.cached = target.context, target.context.lengths - 1
            p = standardise(oracle.score(draft.tokens), sampling, target.context, draft.tokens)
            likely = p[:, :-1].gather(-1, draft.tokens[..., None])[..., 0] >= 0.3
            return Draft(draft.tokens, draft.probs, draft.proposed & likely.to(torch.int64).cumprod(1).bool())

        session.propose = propose
        return session  # type: ignore[no-any-return]


@pytest.mark.parametrize("drafter", [Withdrawing(), AskingTheTarget()], ids=lambda d: d.name)
def test_a_draft_cut_by_what_was_drawn(drafter: Drafter) -> None:
    """Catches a distribution test blind to guesses taken back after looking at them, or at the target."""
    with pytest.raises(AssertionError, match="not the expected distribution"):
        check_distribution(drafter, maximal_coupling, rows=40_000, detects=0.035)


class _ChoosingByGuess(mixture._MixtureSession):
    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        """Takes the second drafter's guess where it is token 1, else copies."""
        copied = mixture.widened(self.first.propose(gamma, sampling, noise, at), gamma)
        second = mixture.widened(self.second.propose(gamma, sampling, noise, at), gamma)
        use_first = copied.proposed[:, :1] & (second.tokens[:, :1] != 1)
        return mixture.joined(copied, second, use_first, self.vocab_size)


def test_a_mixture_that_chooses_by_the_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "_MixtureSession", _ChoosingByGuess)
    with pytest.raises(AssertionError, match="not the expected distribution"):
        check_distribution(Mixture(Copying(shortest=1, longest=3), NEAR), maximal_coupling, rows=40_000, detects=0.035)
