"""A plan from end to end on tiny models, by a clock of the test's own: what is predicted is what is then measured."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import library
import outrider
from clocks import ticking
from outrider.bench.plan import check as checking
from outrider.bench.plan import run as running
from outrider.bench.plan.costs import timed_gammas
from outrider.bench.plan.run import PlanRun
from outrider.bench.plan.settings import PlanSettings
from outrider.drafters import ModelDrafter
from outrider.errors import BadOption
from outrider.runtime import timer
from outrider.trace import strict_json

TASKS = {"first": ["the end", "then and there"], "second": ["a b c a b c a b", "this is it"]}
OPTIONS = {"max_new_tokens": 24, "temperature": 0.0, "seed": 0}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = library.save_llama(tmp_path_factory.mktemp("plan") / "target")
    return outrider.load(str(folder), draft="copy", dtype="float32", slots=1)


def engines_of(llm: Any) -> dict[str, Any]:
    return {"copy": llm, "itself": llm.with_draft(ModelDrafter(llm.target.model))}


def plan_of(llm: Any, settings: PlanSettings, **more: Any) -> PlanRun:
    ids = {task: [llm.encode(text) for text in texts] for task, texts in TASKS.items()}
    with timer.using(ticking()):
        return PlanRun(engines_of(llm), ids, settings, **more).run()


def test_predictions_are_what_is_then_measured(llm: Any) -> None:
    """By a clock that goes on by the same at every reading a step costs the same whatever it does: the speed-up is the
    tokens per run. Catches acceptance, costs or prices that are off, and cells that are mixed up."""
    shares: list[float] = []
    settings = PlanSettings((1, 2, 4, 8), checks=(1, 2, 4, 8), turns=2, options=OPTIONS)
    made = plan_of(llm, settings, progress=lambda what, share: shares.append(share))
    found = {(c.draft, c.gamma): c for c in made.checked}
    assert len(found) == 8 and all(abs(c.error_percent) < 5 for c in made.checked), [
        (key, c.predicted, c.measured) for key, c in found.items()
    ]
    assert found["itself", 4].measured > found["itself", 1].measured > 1.5
    assert all(c.same_text == c.texts == 4 for c in made.checked)
    assert [r.draft for r in made.recommendations] == ["itself"] and made.recommendations[0].gamma == 8
    assert shares == sorted(shares) and 0.9 < shares[-1] <= 1.0 and not made.interrupted
    itself = [row for row in made.to_json()["acceptance"] if row["draft"] == "itself"]
    assert [row["task"] for row in itself] == ["first", "second", "all"] and itself[-1]["prompts"] == 4
    assert itself[-1]["by_number"][:4] == [1.0] * 4 and itself[-1]["alpha"] == 1.0
    assert json.loads(strict_json(made.to_json()))["prompts_done"] == 4


def test_batches_have_costs_and_prices_of_their_own(llm: Any) -> None:
    settings = PlanSettings((1, 3), (1, 3), turns=1, options={**OPTIONS, "max_new_tokens": 8})
    made = plan_of(llm, settings)
    assert {c.batch for c in made.costs.values()} == {1, 3} == set(made.costs)
    assert set(made.prices) == {(d, b) for d in ("copy", "itself") for b in (1, 3)}
    assert {(c.draft, c.gamma, c.batch) for c in made.cells} == {
        (d, g, b) for d in ("copy", "itself") for g in (1, 3) for b in (1, 3)
    }
    assert [r.batch for r in made.recommendations] == [1, 3]
    several = [c for c in made.checked if c.batch == 3]
    assert several and all(c.texts == 3 * 6 == c.same_text and c.measured > 0 for c in several)


def test_a_batch_without_one_still_has_acceptance(llm: Any) -> None:
    made = plan_of(llm, PlanSettings((2,), (2,), turns=1, options={**OPTIONS, "max_new_tokens": 6}))
    assert {c.batch for c in made.cells} == {2} and set(made.costs) == {1, 2}


@pytest.mark.parametrize(("after", "done"), [(0, 0), (2, 2)])
def test_ctrl_c_keeps_the_prompts_that_were_finished(
    llm: Any, monkeypatch: pytest.MonkeyPatch, after: int, done: int
) -> None:
    """Catches a plan that is lost, one that goes on to the next part, and costs that vanish with the prompts."""
    calls, real = iter(range(100)), running.timed_text

    def pressed(*given: Any) -> Any:
        if next(calls) == after:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(running, "timed_text", pressed)
    made = plan_of(llm, PlanSettings((1, 2), turns=1, options=OPTIONS))
    assert made.interrupted and made.prompts_done == done and made.costs[1].widths.keys() == {1, 2, 3}
    assert bool(made.cells) == bool(made.recommendations) == bool(done) and not made.checked


def test_ctrl_c_while_comparing_keeps_what_was_compared(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = iter(range(100)), checking.timed_text

    def pressed(*given: Any) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(checking, "timed_text", pressed)
    made = plan_of(llm, PlanSettings((1, 2), checks=(2,), turns=1, options=OPTIONS))
    assert made.interrupted and made.prompts_done == 4
    assert {(c.draft, c.gamma, c.texts) for c in made.checked} == {("copy", 2, 3), ("itself", 2, 3)}


def test_costs_are_ratios_to_the_plain_step_of_the_same_turn(llm: Any) -> None:
    """Catches a machine that slows down half-way and makes wide runs look dear or cheap."""
    ids = {"all": [llm.encode("the end")]}
    with timer.using(ticking(lambda n: 0.001 * 1.001**n)):  # slower at every reading
        made = PlanRun({"copy": llm}, ids, PlanSettings((2,), turns=2, options={**OPTIONS, "max_new_tokens": 4})).run()
    assert made.costs[1].widths[1] == 1.0 and all(0.7 < cost < 1.4 for cost in made.costs[1].widths.values())


def test_widths_that_are_timed() -> None:
    assert timed_gammas(8, 1) == list(range(1, 9)) and timed_gammas(8, 64) == [1, 2, 4, 8]
    assert timed_gammas(20, 1) == [*range(1, 9), 16, 20] and timed_gammas(1, 8) == [1]


def test_what_cannot_be_compared_is_refused(llm: Any) -> None:
    settings = PlanSettings((1,))
    with pytest.raises(BadOption, match="drafts is empty"):
        PlanRun({}, {"a": [[1]]}, settings)
    with pytest.raises(BadOption, match="draft 'none' is what others are compared with"):
        PlanRun({"none": llm}, {"a": [[1]]}, settings)
    with pytest.raises(BadOption, match="prompts are empty"):
        PlanRun({"copy": llm}, {}, settings)


def test_a_checked_cell_says_how_far_off_it_is() -> None:
    cell = checking.CheckedCell("copy", 2, 1, 1.1, 1.0, (math.nan, math.nan), 1, 1)
    assert cell.error_percent == pytest.approx(10) and cell.to_json()["interval"] == [None, None]


def test_every_capacity_has_a_prompt_that_is_not_counted() -> None:
    """On a GPU the first text of each records CUDA graphs; it is not to be counted."""
    short, long, longer = [1] * 30, [2] * 250, [3] * 260
    assert checking.of_each_capacity([short, long, longer], 64) == [short, longer]
