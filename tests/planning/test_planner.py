"""Choosing gamma: what the counts make of what they see, and what the policies make of that."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outrider.core.model_facts import ModelFacts
from outrider.core.traits import DrafterTraits
from outrider.drafters import Nothing
from outrider.models import width_costs
from outrider.models.toy import ToyModel
from outrider.planning.acceptance import Acceptance
from outrider.planning.adaptive import GRAPH_GAMMAS
from outrider.planning.policies import Auto, Gradient, Planner, Setting, declared_widths, improvement_slope
from outrider.planning.step_clock import Timing
from outrider.runtime import timer
from outrider.theory import Costs, interpolated, optimal_gamma, speedup

LIMIT = 8
FLATTER = interpolated({1: 1.0, 2: 1.07, 4: 1.26, 5: 1.63, 9: 2.41})
"""Runs by width of an engine that reads four bytes a weight, as measured on a CPU without bfloat16."""

STEEPER = interpolated({1: 1.0, 2: 1.11, 3: 1.22, 4: 1.56, 5: 1.89, 9: 3.33})
"""An engine with quicker plain runs."""


def setting(rows: int = 1, splits: bool = True, **drafter: object) -> Setting:
    fake = Nothing()
    fake.traits = DrafterTraits(**drafter)  # type: ignore[arg-type]
    return Setting(rows, LIMIT, fake, "shape", splits=splits)


def live(planner: Planner, alpha: float, runs: int, seed: int = 0) -> list[int]:
    """A row whose guesses are kept with chance alpha each -> the gammas chosen."""
    chance, chosen = random.Random(seed), []
    for _ in range(runs):
        gamma = planner.choose(0)
        kept = next((k for k in range(gamma) if chance.random() >= alpha), gamma)
        planner.learn(0, gamma, kept, min(kept + 1, gamma))
        chosen.append(gamma)
    return chosen


# --- choosing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "c"), [(0.3, 0.05), (0.6, 0.05), (0.6, 0.2), (0.8, 0.02), (0.9, 0.1), (0.95, 0.0)])
def test_auto_comes_close_to_the_best_gamma(alpha: float, c: float) -> None:
    """Catches counts that are biased by the gamma at hand: only examined guesses may count."""
    chosen = live(Auto(c).start(setting()), alpha, 400)[50:]
    best = speedup(alpha, optimal_gamma(alpha, c, LIMIT), c)
    reached = sum(speedup(alpha, g, c) * Costs(draft=c).step(g) for g in chosen) / sum(
        Costs(draft=c).step(g) for g in chosen
    )
    assert reached >= 0.97 * best


def test_auto_believes_measured_widths() -> None:
    """Catches a flat cost assumed where a run of five tokens costs twice one of four."""
    steep = Costs(target=lambda width: 1.0 if width <= 4 else 3.0)
    assert set(live(Auto(steep).start(setting()), 0.9, 100)[20:]) == {3}


def test_auto_steps_aside_tries_again_and_comes_back() -> None:
    """Catches a row that is stuck with a bad drafter, and one that never gives it another chance."""
    planner = Auto(0.3).start(setting())
    aside = live(planner, 0.0, 400)
    assert aside[0] > 0, "the first run must try"
    probes = [i for i, gamma in enumerate(aside) if gamma][-4:]
    assert 0 < sum(map(bool, aside[20:])) <= 8, "a few probes, further and further apart"
    assert probes[-1] - probes[-2] >= 100
    assert sum(map(bool, live(planner, 0.97, 600)[400:])) > 150, "it comes back when the drafter is good again"


def test_auto_follows_a_change() -> None:
    """Catches a running average over all the past: after an easy stretch comes a hard one."""
    planner = Auto(0.1).start(setting())
    easy = live(planner, 0.95, 100)[50:]
    hard = live(planner, 0.2, 100)[50:]
    assert sum(easy) / 50 > 6 and sum(hard) / 50 < 2


def test_a_new_request_starts_afresh() -> None:
    planner = Auto(0.3).start(setting())
    live(planner, 0.0, 50)
    assert planner.choose(0) == 0
    planner.admit(0)
    assert planner.choose(0) > 0


@pytest.mark.parametrize("widths", [FLATTER, STEEPER], ids=["flatter", "steeper"])
@pytest.mark.parametrize("alpha", [0.2, 0.45, 0.65, 0.8, 0.95])
@pytest.mark.parametrize("c", [0.05, 0.2])
def test_widths_that_cost_something_are_weighed(widths: Any, alpha: float, c: float) -> None:
    """By brute force over all gammas: what is chosen brings at least 95 % of what the best would, over eight rows.

    What is lost is lost where the best gains little and a row with bad luck steps aside.
    """
    costs = Costs(widths, c, 0.01)
    chosen = [gamma for seed in range(8) for gamma in live(Auto(costs).start(setting()), alpha, 400, seed)]
    best = max(speedup(alpha, gamma, costs) for gamma in range(LIMIT + 1))
    time = sum(costs.step(gamma) for gamma in chosen)
    assert sum(speedup(alpha, gamma, costs) * costs.step(gamma) for gamma in chosen) / time >= 0.95 * best


def test_a_drafter_that_plans_is_asked_for_all_or_none() -> None:
    assert set(live(Auto(0.1).start(setting(stops_itself=True)), 0.5, 100)) <= {0, LIMIT}
    assert set(live(Auto(0.1).start(setting()), 0.5, 100)) - {0, LIMIT}


@pytest.mark.parametrize("plans", [True, False])
def test_few_numbers_are_asked_for_where_each_is_a_graph(plans: bool) -> None:
    """And one that plans is not asked for all: guesses it does not make take their time in a replayed step."""
    asked = set(live(Auto(0.1).start(setting(splits=False, stops_itself=plans)), 0.5, 100))
    assert asked <= {0, *GRAPH_GAMMAS, LIMIT} and 0 < max(asked) < LIMIT


class Confident:
    """A row with a drafter that knows how sure it is, and goes on while its planner's prices say so."""

    def __init__(self, planner: Any, costs: Costs, seed: int = 0) -> None:
        self.planner, self.costs, self.random = planner, costs, random.Random(seed)
        self.tokens = self.time = 0.0

    def run(self, sure: Any) -> int:
        """One run; ``sure``: draws how sure it is of a guess, which is how often it is kept -> guesses made."""
        asked, made, kept, chance = self.planner.choose(0), 0, 0, 1.0
        floors = self.planner.prices.floors(0, asked) if asked else []
        while made < asked and (made == 0 or chance >= floors[made]):
            confidence = sure(self.random)
            chance *= confidence
            kept += kept == made and self.random.random() < confidence
            made += 1
        self.planner.learn(0, asked, kept, min(kept + 1, made))
        run = self.costs.run(made + 1)
        self.planner.timed(Timing(made + 1, run, self.costs.drafts(made) if asked else None, made))
        self.tokens, self.time = self.tokens + kept + 1, self.time + run + (self.costs.drafts(made) if asked else 0)
        return made


@pytest.mark.parametrize("widths", [FLATTER, STEEPER], ids=["flatter", "steeper"])
@pytest.mark.parametrize("timed", [False, True], ids=["given", "timed"])
def test_a_drafter_that_knows_when_to_stop_beats_every_gamma(widths: Any, timed: bool) -> None:
    """Catches all or nothing: asked for eight guesses it makes two or three, and more where it is sure."""
    costs, sure = Costs(widths, 0.1, 0.03), lambda chance: chance.choice([0.15, 0.6, 0.98, 0.98])
    alpha = (0.15 + 0.6 + 0.98 + 0.98) / 4
    row = Confident(Auto(None if timed else costs).start(setting(stops_itself=True)), costs)
    made = [row.run(sure) for _ in range(1500)]
    assert 1 < sum(made) / len(made) < 4
    assert row.tokens / row.time >= max(speedup(alpha, gamma, costs) for gamma in range(LIMIT + 1))


def test_where_guesses_cost_more_than_they_bring_little_is_lost() -> None:
    """Never slower: a head that is right one time in four, at a third of a run for each guess."""
    costs = Costs(STEEPER, 0.33, 0.05)
    row = Confident(Auto().start(setting(stops_itself=True)), costs)
    for _ in range(600):
        row.run(lambda chance: 0.25)
    assert row.tokens / row.time >= 0.98


def test_a_try_is_priced_low() -> None:
    """Catches a deadlock: the planner tries again, the drafter finds the price too high, and nobody learns anything."""
    planner: Any = Auto(Costs(1.0, 0.9)).start(setting(stops_itself=True))
    rates = []
    for _ in range(60):
        asked = planner.choose(0)
        planner.learn(0, asked, 0, 0)
        rates += [planner.prices.rates[0]] if asked else []
    assert rates and min(rates) == 0.5


def test_what_the_target_declares_is_known_without_a_clock() -> None:
    """Catches seeds under maximal coupling planned as if wide runs were free."""
    target: Any = SimpleNamespace(facts=ModelFacts(8, width_costs={1: 1.0, 2: 1.1, 5: 2.0}))
    widths: Any = declared_widths(target)
    assert [widths(width) for width in (1, 2, 5, 6, 9)] == pytest.approx([1.0, 1.1, 2.0, 2.3, 3.2])
    assert declared_widths(ToyModel(8)) == 1.0, "one that declares none"
    narrow, free = (
        live(Auto(clock=False).start(replace(setting(), widths=costs)), 0.7, 200)[50:] for costs in (widths, 1.0)
    )
    assert sum(narrow) < 0.8 * sum(free)


def test_a_token_costs_the_same_in_any_row() -> None:
    """Catches batches planned as if they were one row: three rows of two tokens are a run of six."""
    target: Any = SimpleNamespace(facts=ModelFacts(8, width_costs={1: 1.0, 3: 1.2, 6: 2.4, 9: 3.6}))
    widths: Any = declared_widths(target, rows=3)
    assert [widths(width) for width in (1, 2, 3)] == pytest.approx([1.0, 2.0, 3.0])


def test_what_a_batch_costs_is_measured_and_not_extrapolated() -> None:
    """Costs were measured up to nine tokens and continued along the last slope: eight rows of two are sixteen."""
    taken = {tokens: float(tokens if tokens < 8 else 8) for tokens in range(1, 33)}  # flat from eight on
    moment = [0.0]

    def score(guesses: torch.Tensor) -> None:
        moment[0] += taken[guesses.shape[1] + 1]

    session = SimpleNamespace(admit=lambda row, prompt, source: None, score=score)
    model: Any = SimpleNamespace(vocab_size=8, facts=ModelFacts(8), start=lambda rows, shape: session)
    with timer.using(lambda: moment[0]):
        costs = width_costs.measured(model)
    target: Any = SimpleNamespace(facts=ModelFacts(8, width_costs=costs))
    widths: Any = declared_widths(target, rows=16)
    assert [widths(1), widths(2)] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("token", "tries"), [(0.95, 0), (0.5, 1)])
def test_what_cannot_pay_is_not_tried(token: float, tries: int) -> None:
    """A batch that fills the machine was slowed down by tries whose guesses, all kept, would still have cost time."""
    planner = Auto(Costs(lambda width: 1 + token * (width - 1), 0.1, 0.05)).start(setting())
    asked = []
    for _ in range(400):
        asked.append(planner.choose(0))
        planner.learn(0, asked[-1], 0, min(1, asked[-1]))
    late = asked[100:]  # what was believed at first is over by then
    assert (sum(map(bool, late)) > 0) == bool(tries)


def test_a_drafter_that_may_decline_is_asked_until_it_was_in_vain_often() -> None:
    """Catches a copy that is never looked for because the first two runs had none, and one that is looked for in vain
    in every run."""
    dear = Costs(lambda width: 1 + 0.4 * (width - 1), 0.25, 0.05)
    planner = Auto(dear).start(setting(stops_itself=True, cheap_to_ask=True))
    asked = []
    for run in range(60):
        asked.append(planner.choose(0))
        kept = 2 if run == 3 else 0
        planner.learn(0, asked[-1], kept, kept)
    assert asked[:8] == [LIMIT] * 8, "three in vain, one kept, four in vain"
    assert 0 < sum(map(bool, asked[8:])) <= 8


def test_depths_are_learnt_apart() -> None:
    """Catches one alpha for all depths: here guesses 1 to 3 are always right and the fourth never is."""
    seen = Acceptance(LIMIT)
    for _ in range(100):
        seen.add(LIMIT, 3, 4)
    chances = seen.chances()
    assert min(chances[:3]) > 0.9 and chances[3] < 0.2
    assert optimal_gamma(chances, 0.1, LIMIT) == 3


def test_rows_that_ran_together_are_counted_at_once() -> None:
    """As if one after another, but for what fades between them; in whatever order; rows not asked say nothing."""
    told = [(4, 2, 3), (0, 0, 0), (4, 4, 4), (2, 0, 1)]
    at_once, other, in_turn = (Acceptance(LIMIT, fade=0.999) for _ in range(3))
    at_once.add_all(told)
    other.add_all(told[::-1])
    for one in told:
        in_turn.add(*one)
    assert (at_once.asked, at_once.made, at_once.kept) == (other.asked, other.made, other.kept)
    assert at_once.made[:4] == [3.0, 2.0, 2.0, 1.0] and at_once.kept[:4] == [2.0, 2.0, 1.0, 1.0]
    assert at_once.chances() == pytest.approx(in_turn.chances(), abs=0.002)


@pytest.mark.parametrize("step", [0.5, 1.2])
def test_plain_steps_are_timed_now_and_then(step: float) -> None:
    """Catches an engine that never learns what plain decoding costs, and so never finds out that it is faster."""
    planner = Auto().start(setting())
    gammas: list[int] = []
    for _ in range(200):
        gamma = planner.choose(0)
        planner.timed(Timing(gamma + 1, 1.0 + step * gamma))
        planner.learn(0, gamma, min(gamma, 1), min(gamma, 2))
        gammas.append(gamma)
    assert gammas[:8].count(0) >= 2 and 0 in gammas[100:170]
    if step < 1:
        assert gammas[20:].count(1) > 150, "two tokens for 1.5 times the time pay"
    else:
        assert sum(map(bool, gammas[20:])) < 30, "two tokens for 2.2 times the time do not"


# --- the gradient rule -------------------------------------------------------------------------------


def test_slope_is_the_derivative_of_theorem_3_8() -> None:
    for alpha, gamma, c in ((0.5, 2.0, 0.1), (0.9, 5.0, 0.02), (0.2, 1.0, 0.3)):
        step = 1e-5

        def improvement(g: float, alpha: float = alpha, c: float = c) -> float:
            return (1 - alpha ** (g + 1)) / ((1 - alpha) * (g * c + 1))

        numeric = (improvement(gamma + step) - improvement(gamma - step)) / (2 * step)
        assert math.isclose(improvement_slope(alpha, gamma, c), numeric, rel_tol=1e-5)


@pytest.mark.parametrize(("alpha", "c"), [(0.8, 0.05), (0.5, 0.1)])
def test_gradient_climbs_to_the_optimum(alpha: float, c: float) -> None:
    chosen = live(Gradient(c, rate=5.0).start(setting()), alpha, 500)[300:]
    assert abs(sum(chosen) / len(chosen) - optimal_gamma(alpha, c, LIMIT)) <= 1
    assert min(chosen) >= 1
