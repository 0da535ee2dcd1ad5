"""The mixture: which drafter a row gets, and what it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from helpers import run
from outrider.core.noise import Noise
from outrider.core.prices import Ladder, Prices
from outrider.core.protocols import Draft, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Fallback, Mixture, ModelDrafter, Ngram, Standardised, Uniform
from outrider.errors import BadOption
from outrider.models.toy import ToyModel

MODEL = ToyModel(12, seed=3, sharpness=2.0)
LONG = [5, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 6, 7, 8, 9]  # ends with nine tokens seen before
SHORT = [1, 2, 7, 8, 5, 1, 2]  # ends with two
NONE = [1, 2, 3, 4, 5, 6]


class Pair:
    """A mixture's session beside a target's, and which drafter was asked."""

    def __init__(self, *prompts: list[int], second: Any = None, cost: float = 0.05) -> None:
        shape = Shape(capacity=256, width=5)
        self.target = MODEL.start(len(prompts), shape)
        second = second or ModelDrafter(MODEL.near(0.5), "near")
        self.session: Any = Mixture(Copying(), second, cost).start(len(prompts), shape, self.target)
        for row, prompt in enumerate(prompts):
            self.target.admit(row, prompt)
            self.session.admit(row, prompt)
        self.asked: list[int] = []
        real = self.session.second.propose

        def propose(gamma: int, *rest: Any) -> Draft:
            self.asked.append(gamma)
            return real(gamma, *rest)  # type: ignore[no-any-return]

        self.session.second.propose = propose

    def propose(self, temperature: float = 0.0, gamma: int = 4) -> Draft:
        rows = self.target.context.rows
        at = self.target.context.positions(gamma + 1)
        return self.session.propose(gamma, Sampling(temperature), Noise(torch.arange(rows)), at)  # type: ignore[no-any-return]

    def copies(self) -> list[bool]:
        """Whether the last draft of each row was a copy."""
        return (self.session.kind < self.session.tried.shape[1] - 1).tolist()

    def commit(self, kept: list[int]) -> None:
        """The text follows this many guesses of each row, then goes another way."""
        draft = self.session.last
        guesses = torch.nn.functional.pad(draft.tokens, (0, 5 - draft.tokens.shape[1]))
        place = torch.arange(5)
        tokens = torch.where(place < torch.tensor(kept)[:, None], guesses, (guesses + 1) % 12)
        for session in (self.target, self.session):
            session.commit(tokens, torch.tensor(kept) + 1)


def test_long_matches_are_copied_and_nothing_else_is_run() -> None:
    pair = Pair(LONG)
    draft = pair.propose()
    assert draft.tokens[0].tolist() == [10, 11, 0, 1] and pair.copies() == [True]
    assert not pair.asked, "on a CPU the second drafter must not run for nobody"


def test_without_a_match_the_second_drafter_speaks() -> None:
    pair = Pair(NONE)
    assert bool(pair.propose().proposed[0, 0]) and pair.copies() == [False]


def test_each_row_has_the_drafter_it_needs() -> None:
    pair = Pair(LONG, NONE)
    draft = pair.propose()
    assert pair.copies() == [True, False] and draft.proposed[:, 0].tolist() == [True, True]


def test_temperature_speaks_against_copying() -> None:
    """Catches priors that ignore temperature: a point mass is kept with probability p(x), which sampling lowers."""
    pair = Pair(SHORT)
    pair.propose(1.0)
    assert pair.copies() == [False], "two tokens in common are not worth a model's guesses at temperature 1"


def test_copies_that_fail_are_given_up_on_that_row_only() -> None:
    """Catches evidence that is shared between rows, or never used."""
    pair = Pair(LONG, LONG)
    pair.propose()
    kinds = pair.session.kind.clone()
    for _ in range(12):
        pair.session.copied = Draft(torch.zeros((2, 4)).long(), None, torch.ones((2, 4)).bool())
        pair.session.kind = kinds
        pair.session._learn(torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]), torch.tensor([1, 5]))
    pair.propose()
    assert pair.copies() == [False, True]


def test_a_new_request_forgets_and_select_carries_along() -> None:
    pair = Pair(LONG, NONE)
    pair.propose()
    pair.commit([4, 0])
    seen = pair.session.tried.clone()
    assert seen[0].sum() == 4 and seen[1].sum() == 1
    pair.session.select(torch.tensor([1, 0]))
    assert torch.equal(pair.session.tried, seen[[1, 0]])
    pair.session.admit(0, NONE)
    assert pair.session.tried[0].sum() == 0 and pair.session.tried[1].sum() == 4


def test_only_the_committed_text_counts() -> None:
    """Catches guesses behind a rejection that count as right or wrong."""
    pair = Pair(LONG)
    pair.propose()
    pair.commit([1])
    assert (float(pair.session.kept.sum()), float(pair.session.tried.sum())) == (1.0, 2.0)


def test_a_cut_draft_is_not_a_failure() -> None:
    """Catches a planner's cap taken for a rejection: the text went on as guessed, as far as it went."""
    pair = Pair(LONG)
    draft = pair.propose()
    pair.session._learn(draft.tokens[:, :2], torch.tensor([2]))  # one guess and the target's own token, which agrees
    assert (float(pair.session.kept.sum()), float(pair.session.tried.sum())) == (2.0, 2.0)


@pytest.mark.parametrize("cost", [0.05, 2.0])
def test_a_second_drafter_that_does_not_pay_is_left_alone(cost: float) -> None:
    """Catches a mixture that is slower than no drafter at all; now and then it tries again."""
    pair = Pair(NONE, second=Uniform(), cost=cost)
    for _ in range(60):
        pair.propose()
        pair.commit([0])
    assert len(pair.asked) <= (45 if cost < 1 else 0)


def test_the_second_drafter_is_asked_for_as_much_as_pays() -> None:
    """Catches a fixed length: guesses that cost more are fewer, Theorem 3.8."""
    lengths = []
    for cost in (0.01, 0.1, 0.4):
        pair = Pair(NONE, cost=cost)
        pair.propose()
        lengths += pair.asked
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]


def priced(steps: Sequence[float], cost: float, rate: float = 1.0, rows: int = 1) -> Prices:
    """Runs behind 0, 1, ... 4 guesses take this long, every guess of the second drafter ``cost``."""
    return Prices(Ladder(tuple(steps), tuple(cost * k for k in range(5))), [rate] * rows, [0.5] * rows)


def test_a_copy_is_as_long_as_its_rows_pay() -> None:
    """Catches eight copied tokens where a run of nine costs more than they bring."""
    pair = Pair(LONG)
    pair.session.prices = priced([1, 1.1, 1.2, 3, 5], cost=0.1)
    draft = pair.propose()
    assert pair.copies() == [True] and draft.tokens.tolist() == [[10, 11]] and pair.session.spent == 0


def test_where_neither_pays_nothing_is_drafted() -> None:
    """Even if there is a copy: it takes a row of the run."""
    pair = Pair(LONG)
    pair.session.prices = priced([1, 2, 3, 4, 5], cost=0.1)
    assert pair.propose().tokens.shape == (1, 0) and not pair.asked


def test_the_second_drafter_is_told_the_prices_with_its_own_acceptance() -> None:
    second = ModelDrafter(MODEL.near(0.5), "near", floor=0.1)
    pair = Pair(NONE, NONE, second=second)
    pair.session.kept[1, -1], pair.session.tried[1, -1] = 20, 20
    pair.session.prices = priced([1, 1.1, 1.2, 1.3, 1.4], cost=0.1, rows=2)
    pair.propose()
    told = pair.session.second.prices
    assert told.ladder is pair.session.prices.ladder and told.alphas == pytest.approx([0.6, (20 + 2.4) / 24])
    assert pair.asked == [4] and pair.session.spent >= 1
    pair.session.prices = None
    pair.propose()
    assert pair.session.second.prices is None


def test_bad_cost() -> None:
    with pytest.raises(BadOption, match="cost"):
        Mixture(Copying(), Uniform(), cost=-1)


@pytest.mark.parametrize("limits", [[4, 4, 4], [2, 1, 4], [4, 0, 0]], ids=str)
def test_host_and_device_choose_and_learn_alike(limits: list[int]) -> None:
    """Catches the two ways of weighing drifting apart: a GPU weighs with tensors, a CPU row by row."""
    random = torch.Generator().manual_seed(0)
    most = torch.tensor(limits)
    for stops in (False, True):
        for temperature in (0.0, 0.7, 1.0):
            pair = Pair(LONG, SHORT, NONE)
            session = pair.session
            session.stops, session.caps = stops, most
            session.tried.copy_(torch.rand(session.tried.shape, generator=random) * 20)
            session.kept.copy_(session.tried * torch.rand(session.tried.shape, generator=random))
            draft = pair.propose(temperature)
            copied = session.first.propose(4, Sampling(temperature), Noise(torch.arange(3)), torch.zeros((3, 5)))
            length = copied.cut(most).proposed.sum(1)
            kind, agreed = session.kind, session.agreed
            use_first, checked, guesses = session._weigh(length, most, 4, Sampling(temperature))
            assert torch.equal(session.kind, kind)
            choices = session._choose(length.tolist(), limits, Sampling(temperature))
            assert [choice.asked for choice in choices] == guesses.tolist()
            assert [choice.copied > 0 for choice in choices] == (use_first | checked).tolist()
            session.agreed = agreed
            tokens = torch.nn.functional.pad(draft.tokens, (0, 5 - draft.tokens.shape[1]))
            tokens[1, :1] += 1
            before = [seen.clone() for seen in session.learned]
            session._learn(tokens, torch.tensor([2, 1, 3]))
            on_host = [seen.clone() for seen in session.learned]
            for seen, old in zip(session.learned, before, strict=True):
                seen.copy_(old)
            session.on_cpu = False
            session._learn(tokens, torch.tensor([2, 1, 3]))
            for one, two in zip(session.learned, on_host, strict=True):
                torch.testing.assert_close(one, two)


class Ragged:
    """A policy whose gamma follows from the row's own text, and is often nothing."""

    def start(self, setting: Any) -> Ragged:
        self.rows = [0] * setting.rows
        return self

    def admit(self, row: int) -> None:
        self.rows[row] = 0

    def choose(self, row: int) -> int:
        self.rows[row] += 1
        return (0, 3, 0, 1, 4)[self.rows[row] % 5]

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        self.rows[row] += accepted

    def timed(self, step: Any) -> None: ...


class AsOnGPU(Mixture):
    def start(self, rows: int, shape: Shape, target: Any) -> Any:
        session: Any = super().start(rows, shape, target)
        session.on_cpu = False  # nothing is read on the host
        return session


WRAPPERS = {
    "alone": lambda d: d,
    "as on a GPU": lambda d: AsOnGPU(d.first, d.second, d.cost),
    "second as on a GPU": lambda d: Fallback(Copying(shortest=3), AsOnGPU(d.first, d.second, d.cost)),
    "standardised": lambda d: Standardised(d, 0.7),
    "first": lambda d: Fallback(d, Uniform()),
    "second": lambda d: Fallback(Copying(shortest=3), d),
    "mixed": lambda d: Mixture(Copying(), d, cost=0.1),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
@pytest.mark.parametrize("first", [Copying(), Ngram()], ids=["copy", "ngram"])
def test_a_row_is_the_same_alone_beside_others_and_beside_an_idle_slot(first: Any, wrap: Any) -> None:
    """Guesses the policy had cut off were learnt from, and steps without guesses faded what was known by as many as
    the neighbours made of them."""
    model = ToyModel(8, order=1, seed=1, sharpness=2.5)
    drafter = wrap(Mixture(first, ModelDrafter(model.near(0.4)), cost=0.2))
    for seed in range(20):
        own, other = Request((3, 5, 3, 5, 3), Stopping(40), seed=seed), Request((1, 2, 6), Stopping(50), seed=99 - seed)
        batches = ([own], 1), ([own], 2), ([other, own], 2)
        texts = [
            run(model, drafter, requests, Ragged(), Sampling(1.0), maximal_coupling, slots=slots)[0][-1]
            for requests, slots in batches
        ]
        assert texts[0] == texts[1] == texts[2], f"seed {seed}"


def test_an_idle_slot_does_not_run_the_second_drafter() -> None:
    """A slot without a request was weighed like a row: it found nothing to copy and made the head run."""
    runs: list[int] = []

    class Counting(ModelDrafter):
        def start(self, rows: int, shape: Shape, target: Any) -> Any:
            session: Any = super().start(rows, shape, target)
            real = session.propose
            session.propose = lambda gamma, *rest: (runs.append(gamma), real(gamma, *rest))[1]
            return session

    drafter = Mixture(Copying(), Counting(MODEL.near(0.5)), cost=0.05)
    request = Request(tuple(LONG), Stopping(1))
    for slots in (1, 3):
        run(MODEL, drafter, [request], 4, slots=slots)
    assert not runs
