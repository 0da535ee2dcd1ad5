"""Choosing gamma: what the clock and the counts make of what they see, and what the policies make of that."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from helpers import run
from outrider.decoding import decoder as decoder_module
from outrider.decoding.clock import Clock
from outrider.decoding.decoder import Request
from outrider.decoding.planner import Acceptance, Auto, Fixed, Gradient, Planner, Policy, Setting, improvement_slope
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Mixture, ModelDrafter, Nothing
from outrider.errors import BadOption
from outrider.models.toy import ToyModel
from outrider.sampling import Sampling
from outrider.theory import Costs, optimal_gamma, speedup
from outrider.types import Draft
from outrider.verification.coupling import maximal_coupling
from outrider.verification.matching import gumbel_coupling

MODEL = ToyModel(12, seed=3, sharpness=2.0)
NEAR = ModelDrafter(MODEL.near(0.5), "near")
LIMIT = 8


def setting(rows: int = 1, **drafter: object) -> Setting:
    fake = Nothing()
    for name, value in drafter.items():
        setattr(fake, name, value)
    return Setting(rows, LIMIT, fake, "shape")


def live(planner: Planner, alpha: float, runs: int, seed: int = 0) -> list[int]:
    """A row whose guesses are kept with chance alpha each -> the gammas chosen."""
    chance, chosen = random.Random(seed), []
    for _ in range(runs):
        gamma = planner.choose(0)
        kept = next((k for k in range(gamma) if chance.random() >= alpha), gamma)
        planner.learn(0, gamma, kept)
        chosen.append(gamma)
    return chosen


# --- the clock ---------------------------------------------------------------------------------------


def test_a_clock_promises_no_time_back() -> None:
    """A process stopped now and then measures steps that took no time and steps that took ages: costs stay costs."""
    clock = Clock(nominal=0.05)
    for gamma, seconds, undrafted in [(0, 1.0, None), (4, 0.01, -0.5), *[(8, s / 10, None) for s in range(1, 60)]]:
        clock.add(gamma, seconds, undrafted)
        assert all(clock.costs().step(gamma) > 0 for gamma in range(9))


def test_clock_finds_the_costs_of_wide_and_plain_steps() -> None:
    """Catches plain steps taken for part of the line, and a slope that stays where it started."""
    clock = Clock(nominal=0.5)
    for step in range(300):
        gamma = (0, 2, 5, 7)[step % 4]
        clock.add(gamma, 0.6 if gamma == 0 else 1.0 + 0.1 * gamma)
    costs = clock.costs()
    for gamma in (1, 3, 8):
        assert costs.step(gamma) == pytest.approx((1.0 + 0.1 * gamma) / 0.6, rel=0.05)
    assert costs.step(0) == 1


def test_clock_is_not_upset_by_a_pause_or_by_warming_up() -> None:
    """Catches one step that took a minute deciding everything after it."""
    clock = Clock(nominal=0.05)
    for step in range(60):
        clock.add(step % 2 * 4, 60.0 if step in (0, 30, 31) else 1.0 + step % 2 * 0.2)
    assert clock.costs().step(4) == pytest.approx(1.2, rel=0.1)


def test_clock_needs_no_plain_steps_where_steps_tell_what_they_would_take_without_guesses() -> None:
    clock = Clock(nominal=0.5)
    for _ in range(100):
        clock.add(4, 1.2, 1.0)
        assert not clock.wants_plain
    assert clock.costs().step(4) == pytest.approx(1.2)


def test_clock_believes_the_drafter_until_it_has_seen_both_kinds_of_step() -> None:
    clock = Clock(nominal=0.25)
    clock.add(4, 9.0)
    clock.add(4, 1.0)
    assert clock.costs() == Costs(draft=0.25)


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


def test_a_drafter_that_plans_is_asked_for_all_or_none() -> None:
    assert set(live(Auto(0.1).start(setting(plans=True)), 0.5, 100)) <= {0, LIMIT}
    assert set(live(Auto(0.1).start(setting()), 0.5, 100)) - {0, LIMIT}


def test_depths_are_learnt_apart() -> None:
    """Catches one alpha for all depths: here guesses 1 to 3 are always right and the fourth never is."""
    seen = Acceptance(LIMIT)
    for _ in range(100):
        seen.add(LIMIT, 3)
    chances = seen.chances()
    assert min(chances[:3]) > 0.9 and chances[3] < 0.2
    assert optimal_gamma(chances, 0.1, LIMIT) == 3


def test_plain_steps_are_timed_now_and_then() -> None:
    """Catches an engine that never learns what plain decoding costs, and so never finds out that it is faster."""
    planner = Auto().start(setting())
    gammas = []
    for _ in range(200):
        gamma = planner.choose(0)
        planner.timed(gamma, 1.0 + 0.5 * gamma, None)
        planner.learn(0, gamma, min(gamma, 1))
        gammas.append(gamma)
    assert gammas[:8].count(0) >= 2
    assert sum(map(bool, gammas[20:])) < 30, "two tokens for 1.5 times the time of one pay; four for 3 times do not"


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


# --- through the decoder -----------------------------------------------------------------------------


def requests(count: int = 5, seed: int | None = None) -> list[Request]:
    return [
        Request(tuple((7 * i + j) % 12 for j in range(3 + i)), Stopping(18 + 5 * i), i if seed is None else seed)
        for i in range(count)
    ]


class Ragged:
    """Row i asks for i guesses, then for i + 1, and so on around."""

    def start(self, setting: Setting) -> Planner:
        return _RaggedPlanner(setting)


class _RaggedPlanner(Fixed):
    def __init__(self, setting: Setting) -> None:
        super().__init__(0)
        object.__setattr__(self, "setting", setting)
        object.__setattr__(self, "calls", 0)

    def choose(self, row: int) -> int:
        object.__setattr__(self, "calls", self.calls + 1)  # type: ignore[attr-defined]
        return (row + self.calls) % (self.setting.limit + 1)  # type: ignore[attr-defined]


POLICIES: dict[str, Policy] = {
    "auto": Auto(),
    "auto, cheap": Auto(0.01),
    "auto, dear": Auto(0.6),
    "gradient": Gradient(),
    "fixed": Fixed(3),
    "ragged": Ragged(),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("drafter", [NEAR, Mixture(Copying(), NEAR)], ids=lambda d: d.name)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_greedy_and_gumbel_text_is_the_same_whatever_the_policy(
    name: str, drafter: ModelDrafter | Mixture, temperature: float
) -> None:
    """Catches rows that are cut at another row's gamma, and caches that fall out of step over plain steps."""
    how = {"sampling": Sampling(temperature), "verifier": gumbel_coupling, "slots": 3}
    plain, _ = run(MODEL, Nothing(), requests(), 0, **how)
    texts, trace = run(MODEL, drafter, requests(), POLICIES[name], **how)
    assert texts == plain
    assert any(r.accepted for r in trace.records), "no guess was ever kept: nothing was tested"


def test_fixed_is_what_a_number_is() -> None:
    one = run(MODEL, NEAR, requests(), 3, Sampling(1.0), maximal_coupling)
    two = run(MODEL, NEAR, requests(), Fixed(3), Sampling(1.0), maximal_coupling)
    assert one[0] == two[0] and one[1].records == two[1].records


def test_rows_have_a_gamma_of_their_own() -> None:
    """Catches one gamma for the batch: rows are cut to their own, and the drafter runs for the longest."""
    _, trace = run(MODEL, NEAR, requests(3), Ragged(), Sampling(1.0), maximal_coupling, width=6)
    drafted = {(r.row, len(r.drafted)) for r in trace.records}
    assert len({length for _, length in drafted}) >= 4


@pytest.mark.parametrize("policy", [Auto(0.1), Gradient(0.1)], ids=["auto", "gradient"])
@pytest.mark.parametrize("drafter", [NEAR, Mixture(Copying(), NEAR)], ids=lambda d: d.name)
def test_given_costs_make_a_row_independent_of_clock_and_neighbours(
    policy: Policy, drafter: ModelDrafter | Mixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches timings, or the rows beside, that decide anything although costs were given."""
    how = {"sampling": Sampling(1.0), "verifier": maximal_coupling, "slots": 3}
    alone = [run(MODEL, drafter, [r], policy, **how)[0][0] for r in requests(seed=7)]
    clock = iter(range(10**9))
    monkeypatch.setattr(decoder_module.time, "perf_counter", lambda: float(next(clock)) ** 2)
    assert run(MODEL, drafter, requests(seed=7), policy, **how)[0] == alone


def test_a_row_that_stepped_aside_asks_nothing_of_the_drafter() -> None:
    """Catches drafting for nobody: a step without guesses must not run the drafter."""
    asked: list[int] = []

    class Counting:
        name, cost = "counting", 0.5

        def start(self, rows: int, shape: object, target: object) -> object:
            session = Nothing().start(rows, shape, target)  # type: ignore[arg-type]
            real = session.propose

            def propose(gamma: int, *rest: object) -> Draft:
                asked.append(gamma)
                return real(gamma, *rest)  # type: ignore[arg-type]

            session.propose = propose  # type: ignore[method-assign]
            return session

    run(MODEL, Counting(), [Request((1, 2), Stopping(60))], Auto(0.5))  # type: ignore[arg-type]
    assert 0 < sum(map(bool, asked)) < 15


@pytest.mark.parametrize("bad", ["often", 1.5, -1, object()])
def test_what_is_no_gamma_is_refused(bad: object) -> None:
    from outrider.options import Options

    with pytest.raises(BadOption, match="gamma"):
        Options(gamma=bad)


@pytest.mark.parametrize("bad", [-0.1, math.nan])
def test_what_is_no_cost_is_refused(bad: float) -> None:
    with pytest.raises(BadOption, match="draft"):
        Auto(bad)


def test_caps_keep_a_prefix() -> None:
    draft = Draft(torch.zeros((2, 3), dtype=torch.int64), None, torch.ones((2, 3), dtype=torch.bool))
    kept: Sequence[Sequence[bool]] = draft.cut(torch.tensor([1, 5])).proposed.tolist()
    assert kept == [[True, False, False], [True, True, True]]
