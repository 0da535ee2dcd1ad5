"""Predictions: acceptance replayed with a smaller gamma, prices from what steps took, and what is recommended."""

from __future__ import annotations

import math
import random

import pytest

from outrider.bench.plan.acceptance import DraftedRun, counted, replayed, runs_of, together
from outrider.bench.plan.forecast import (
    GuessPrice,
    PredictedCell,
    PricedDraft,
    TargetCosts,
    fitted,
    recommended,
    sentence,
)
from outrider.bench.plan.settings import PlanSettings
from outrider.errors import BadOption
from outrider.theory import expected_tokens, speedup
from outrider.trace import Record


def decoded(right: list[bool], gamma: int) -> list[DraftedRun]:
    """The runs of a text whose token k a drafter would have guessed or not, by the text alone."""
    runs, at = [], 0
    while at < len(right):
        drafted = min(gamma, len(right) - at)
        kept = next((k for k in range(drafted) if not right[at + k]), drafted)
        kept = min(kept, len(right) - at - 1)
        runs.append(DraftedRun(drafted, kept))
        at += kept + 1
    return runs


def outcomes(count: int, chance: float, longest: int, seed: int) -> list[bool]:
    """Random hits, but no more than ``longest`` in a row."""
    drawn, found, row = random.Random(seed), [], 0
    for _ in range(count):
        hit = drawn.random() < chance and row < longest
        row = row + 1 if hit else 0
        found.append(hit)
    return found


@pytest.mark.parametrize("gamma", range(1, 8))
def test_a_replay_is_what_decoding_with_fewer_guesses_gives(gamma: int) -> None:
    """Catches a replay that only cuts runs off: what follows a run that was cut goes on with right guesses."""
    right = outcomes(400, 0.8, longest=6, seed=gamma)  # a miss within every recorded run
    ours = replayed(decoded(right, 7), 7, gamma)
    theirs = decoded(right, gamma)
    assert [run.accepted for run in ours[:-4]] == [run.accepted for run in theirs[: len(ours) - 4]]
    assert abs(len(ours) - len(theirs)) <= 2  # at the end of the text alone


def test_texts_that_are_always_foreseen_stay_so() -> None:
    """Catches a replay that breaks off where the recorded gamma did: 9 tokens were 4, 4 and 1, not 4, 4, 4."""
    runs = replayed([DraftedRun(8, 8)] * 40, 8, 3)
    assert len(runs) == 90 and {run.accepted for run in runs} == {3}


def test_a_long_text_of_any_kind_is_replayed_within_a_few_per_cent() -> None:
    right = outcomes(20_000, 0.9, longest=10**6, seed=1)
    for gamma in (1, 2, 4, 8):
        assert len(replayed(decoded(right, 8), 8, gamma)) == pytest.approx(len(decoded(right, gamma)), rel=0.03)


def test_drafts_that_end_by_themselves_stay_short() -> None:
    """Catches guesses that a copy never made: it had two, and a smaller gamma leaves it one."""
    found = replayed([DraftedRun(2, 1), DraftedRun(0, 0), DraftedRun(4, 4)], 4, 3)
    assert found == [DraftedRun(2, 1), DraftedRun(0, 0), DraftedRun(3, 3), DraftedRun(3, 0)]
    assert replayed([DraftedRun(2, 1)], 4, 4) == [DraftedRun(2, 1)]
    with pytest.raises(BadOption, match="gamma must be from 1 to 4"):
        replayed([DraftedRun(2, 1)], 4, 5)


def test_guesses_behind_the_end_of_a_text_are_not_kept() -> None:
    record = Record(0, 5, (1, 2, 3), 3, 4, (1.0, 1.0, 1.0), emitted=2)
    assert runs_of([record]) == (DraftedRun(3, 1),)


def test_counts_give_the_tokens_of_equation_1() -> None:
    """Catches alpha by number that is not conditional on the guesses before."""
    counts = counted([DraftedRun(3, 3), DraftedRun(3, 1), DraftedRun(0, 0), DraftedRun(2, 0)], 3)
    assert counts.made == (3, 3, 2) and counts.kept == (2, 1, 1) and counts.examined == 3 + 2 + 1
    assert counts.alpha == pytest.approx(4 / 6)
    assert expected_tokens(counts.chances, 3) == pytest.approx(counts.tokens / counts.runs) == 2.0
    assert together([counts, counts]).shares == counts.shares


COSTS = TargetCosts(1, 0.01, {1: 1.0, 2: 1.2, 4: 2.0}, 5)


def test_a_prediction_is_tokens_over_measured_costs() -> None:
    """Catches costs of full drafts counted for drafts that stopped."""
    runs = [DraftedRun(3, 3), DraftedRun(1, 0), DraftedRun(0, 0)]
    counts, priced = counted(runs, 3), PricedDraft(COSTS, GuessPrice(0.1, 0.05))
    cost = math.fsum([2.0, 1.2, 1.0]) + 3 * 0.1 + 4 * 0.05
    assert priced.speedup(counts) == pytest.approx(6 / cost)
    paper = PricedDraft(TargetCosts(1, 0.01, {1: 1.0, 9: 1.0}, 1), GuessPrice(0.0, 0.2))
    full = counted([DraftedRun(2, 2), DraftedRun(2, 0)], 2)
    assert paper.speedup(full) == pytest.approx(speedup(full.chances, 2, 0.2))  # Theorem 3.8 as it stands


def test_rows_of_a_batch_wait_for_the_one_that_guesses() -> None:
    """Catches a batch priced like a row alone: a guess that one row in two makes is in nearly every run of eight."""
    counts = counted([DraftedRun(1, 1), DraftedRun(0, 0)], 1)
    one, eight = (PricedDraft(TargetCosts(n, 0.01, {1: 1.0, 2: 2.0}, 1), GuessPrice(0.0, 0.0)) for n in (1, 8))
    assert one.speedup(counts) == pytest.approx(1.5 / 1.5)
    assert eight.speedup(counts) == pytest.approx(1.5 / (1 + 255 / 256))


def test_an_interval_widens_with_the_differences_between_prompts() -> None:
    priced = PricedDraft(COSTS, GuessPrice(0.0, 0.0))
    good, bad = counted([DraftedRun(1, 1)] * 9, 1), counted([DraftedRun(1, 0)] * 9, 1)
    assert priced.interval([good] * 6) == pytest.approx((2 / 1.2, 2 / 1.2))
    low, high = priced.interval([good, bad] * 3)
    assert low < priced.speedup(together([good, bad])) < high
    assert all(map(math.isnan, priced.interval([good])))


def test_prices_explain_what_steps_took() -> None:
    """Catches a price of guesses that holds what asking takes, and prices below nothing."""
    price = fitted([(100, 150, 100 * 0.2 + 150 * 0.05), (60, 400, 60 * 0.2 + 400 * 0.05)])
    assert (price.asking, price.guess) == pytest.approx((0.2, 0.05))
    assert fitted([(100, 150, -3.0), (60, 400, -1.0)]) == GuessPrice(0.0, 0.0)
    alone = fitted([(100, 300, 30.0), (50, 400, 40.0)])  # asking would be below nothing
    assert alone.asking == 0.0 and alone.guess == pytest.approx(0.1)
    assert fitted([(100, 0, 20.0)]) == GuessPrice(pytest.approx(0.2), 0.0)


def cell(draft: str, gamma: int, batch: int, value: float, low: float) -> PredictedCell:
    return PredictedCell(draft, gamma, batch, value, (low, 2 * value - low))


def test_the_fastest_cell_is_recommended_where_its_gain_is_certain() -> None:
    """Catches a recommendation for one batch taken from another, and one whose interval holds a loss."""
    cells = [cell("copy", 3, 1, 1.5, 1.2), cell("copy", 5, 1, 1.5, 1.2), cell("head", 2, 1, 1.4, 1.3)]
    cells += [cell("copy", 3, 8, 1.3, 0.9), cell("head", 1, 64, 1.01, 1.005)]
    found = recommended(cells)
    assert [(r.batch, r.draft, r.gamma) for r in found] == [(1, "copy", 3), (8, "none", 0), (64, "none", 0)]
    text = sentence(found)
    assert text.startswith(
        "For 1 request at a time use --draft copy --gamma 3, predicted 1.50x (1.20 to 1.80) of plain"
    )
    assert "for 8 requests at a time do not speculate" in text and "\n" not in text
    assert "no prompt was finished" in sentence([])


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadOption, match="gamma is empty"):
        PlanSettings(())
    with pytest.raises(BadOption, match="batch is empty"):
        PlanSettings((1,), ())
    with pytest.raises(BadOption, match=r"check names gamma \[7\].*choose among 1, 2"):
        PlanSettings((1, 2), checks=(7,))
    with pytest.raises(BadOption, match="batch must be at most 4096"):
        PlanSettings((1,), (5000,))
    with pytest.raises(BadOption, match="must differ"):
        PlanSettings((1, 1))
    settings = PlanSettings(tuple(range(1, 9)))
    assert settings.recorded == (3, 8) and [settings.recorded_for(g) for g in (1, 3, 4, 8)] == [3, 3, 8, 8]
