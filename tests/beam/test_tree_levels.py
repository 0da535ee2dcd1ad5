"""A beam search guesses where levels of guesses are worth their time, and is the plain search where they are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from outrider.beam.search import BeamDecoder
from outrider.beam.tree_levels import DISMISSED_AFTER, Levels, SearchShape
from outrider.core.model_facts import ModelFacts
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, Nothing
from outrider.models.toy import ToyModel
from outrider.planning.policies import Auto, Fixed, Planner, Setting
from outrider.runtime import timer
from outrider.trace import Trace


class PricedToy(ToyModel):
    """A toy that says what its runs cost by their tokens."""

    costs: Mapping[int, float] = {1: 1.0, 32: 1.0}

    @property
    def facts(self) -> ModelFacts:
        return replace(super().facts, batch_invariant=True, width_costs=self.costs)


def target(slope: float) -> PricedToy:
    """Each token of a run beyond the first costs so much of a run."""
    toy = PricedToy(24, 2, seed=5, sharpness=2.0)
    toy.costs = {1: 1.0, 32: 1.0 + 31 * slope}
    return toy


class Cheap(ModelDrafter):
    """Guesses for nothing."""

    traits = DrafterTraits(cost=0.0)


class Ticking:
    """A clock for plain steps of 1 second, drafts of 0.1, and runs with guesses of ``wide`` seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Ticking]:
    ticking = Ticking()
    with timer.using(ticking):
        yield ticking


def levels(slope: float, beams: int, policy: Auto | None = None) -> Levels:
    toy = target(slope)
    return Levels(policy or Auto(), SearchShape(beams, beams + beams // 2, 2), toy, Cheap(toy, "draft"))


def test_what_tokens_cost_decides_before_anything_was_tried() -> None:
    """Trees were run wherever there was a drafter: at 0.3 of a run a token, four beams took twice as long with them."""
    assert levels(0.0, 2).choose(50) > 0 and levels(0.0, 4).choose(50) > 0
    assert levels(0.3, 2).choose(50) == 0 and levels(0.3, 4).choose(50) == 0
    assert levels(0.0, 2).choose(1) == 0, "nothing is run behind the last step"
    fixed = Levels(None, SearchShape(4, 6, 2), target(0.3), Nothing())
    assert [fixed.choose(left) for left in (50, 2, 1)] == [2, 1, 0], "a number that was asked for is honoured"


def steps(search: Levels, clock: Ticking, count: int, kept: int, wide: float) -> list[int]:
    """So many runs, of which those with guesses have this many levels kept -> the levels that each had."""
    found = []
    for _ in range(count):
        asked = search.choose(50)
        clock.now += 0.1 if asked else 0.0
        search.made()
        clock.now += wide if asked else 1.0
        search.learn(asked, asked, 1 + min(kept, asked), 40)
        found.append(asked)
        if search.dismissed:
            break
    return found


def test_levels_that_are_never_kept_end_the_drafter(clock: Ticking) -> None:
    """Catches a search that goes on guessing in vain, and one after it that has learnt nothing."""
    policy = Auto()
    first = levels(0.0, 2, policy)
    found = steps(first, clock, 60, kept=0, wide=1.4)
    assert first.dismissed and found[-DISMISSED_AFTER:] == [0] * DISMISSED_AFTER
    for _ in range(6):
        steps(levels(0.0, 2, policy), clock, 60, kept=0, wide=1.4)
    asked = [asked for _ in range(7) for asked in steps(levels(0.0, 2, policy), clock, 1, kept=0, wide=1.4)]
    assert sum(map(bool, asked)) <= 1, "what searches have shown is kept for the next, which try now and then"


def test_levels_that_pay_go_on(clock: Ticking) -> None:
    """Catches a planner that stops guessing for good although a run with guesses does the work of two."""
    search = levels(0.0, 2)
    found = steps(search, clock, 40, kept=1, wide=1.1)
    assert sum(asked > 0 for asked in found[-20:]) >= 18 and not search.dismissed


def test_runs_that_take_too_long_end_the_drafter_though_levels_are_kept(clock: Ticking) -> None:
    """Declared costs said that rows are free; the clock says three runs, for the steps of two."""
    search = levels(0.0, 2)
    steps(search, clock, 60, kept=1, wide=3.0)
    assert search.dismissed


class Sometimes:
    """A policy that asks for these numbers of levels in turn."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.at = numbers, -1

    def start(self, setting: Setting) -> Planner:
        outer = self

        class Turn(Fixed):
            def choose(self, row: int) -> int:
                outer.at += 1
                return outer.numbers[outer.at % len(outer.numbers)]

        return Turn(0)


def search(toy: ToyModel, drafter: Any, policy: Any, rows: int = 3) -> tuple[Any, Trace]:
    decoder = Decoder(toy, drafter, gumbel_coupling, Sampling(temperature=0.0), 2, 3)
    trace = Trace("toy")
    request = Request((1, 2, 3), Stopping(20, eos=frozenset({7})))
    return BeamDecoder(decoder, 2, rows, policy=policy).search(request, trace), trace


@pytest.mark.parametrize("numbers", [(2,), (2, 0, 1), (1, 0, 0), (2, 0, 0, 0, 0, 0)], ids=str)
def test_hypotheses_do_not_depend_on_what_is_decided(numbers: tuple[int, ...]) -> None:
    """Catches a search that loses its place where guesses begin, pause, or end with the drafter."""
    for toy in (target(0.0), ToyModel(24, 2, seed=5, sharpness=2.0)):  # as narrow as can be, and of constant shapes
        plain, _ = search(toy, Nothing(), None)
        found, trace = search(toy, ModelDrafter(toy.near(0.3), "near"), Sometimes(*numbers))
        assert found == plain
        drafted = [len(record.drafted) for record in trace.records]
        assert max(drafted) > 0 and (numbers == (2,) or min(drafted[:-2]) == 0)


def test_a_drafter_that_is_not_asked_is_not_started() -> None:
    """A session of its own, a prompt to read and states to keep: a plain search pays for none of it."""

    class Asleep(Nothing):
        name = "asleep"

        def start(self, rows: int, shape: Any, target: Any) -> Any:
            raise AssertionError("a search without guesses has no use for it")

    toy = target(0.0)
    rows: list[int] = []
    start = toy.start
    toy.start = lambda count, shape: (rows.append(count), start(count, shape))[1]  # type: ignore[method-assign]
    assert search(toy, Asleep(), Sometimes(0))[0] == search(toy, Nothing(), None)[0]
    assert rows[0] == 2, "and it has a row for each hypothesis, no more"
    assert torch.tensor(rows).max() == 3
