"""When another guess is worth its time: the rule against brute force over all rules there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from outrider.core.prices import Ladder, Prices
from outrider.theory import Costs, expected_tokens, interpolated, speedup

LIMIT = 6
CONFIDENCES = {0.15: 0.25, 0.6: 0.35, 0.98: 0.4}
"""How sure a drafter is of a guess, and how often; a guess is kept as often as it is sure."""

ALPHA = sum(c * share for c, share in CONFIDENCES.items())

LADDERS = {
    "a slow engine": Costs(interpolated({1: 1.0, 2: 1.07, 4: 1.26, 5: 1.63, 9: 2.41}), 0.1),
    "a quick engine": Costs(interpolated({1: 1.0, 2: 1.11, 3: 1.22, 4: 1.56, 5: 1.89, 9: 3.33}), 0.11),
    "a quick engine, dear guesses": Costs(interpolated({1: 1.0, 2: 1.11, 3: 1.22, 4: 1.56, 5: 1.89, 9: 3.33}), 0.33),
    "constant width": Costs(1.0, 0.05),
    "stairs": Costs(lambda width: 1.0 if width == 1 else 1.5 if width <= 5 else 2.5, 0.02, 0.05),
}


def reached(ladder: Ladder, go_on: Callable[[int, float], bool]) -> float:
    """Tokens per time of drafts that go on from k guesses, all kept with this chance, as the rule says: exactly."""

    @cache
    def behind(k: int, chance: float) -> tuple[float, float]:
        if k == LIMIT or not go_on(k, chance):
            return 0.0, 0.0
        tokens, time = 0.0, ladder.more(k + 1)
        for confidence, share in CONFIDENCES.items():
            more = behind(k + 1, chance * confidence)
            tokens, time = tokens + share * (chance * confidence + more[0]), time + share * more[1]
        return tokens, time

    tokens, time = behind(0, 1.0)
    return (1 + tokens) / (ladder.runs[0] + ladder.drafts[0] * (time > 0) + time)


def best_possible(ladder: Ladder) -> float:
    """The greatest rate of any rule: by dynamic programming for a price of time, and the price that leaves nothing."""

    def surplus(price: float) -> float:
        @cache
        def value(k: int, chance: float) -> float:
            if k == LIMIT:
                return 0.0
            gain = sum(
                share * (chance * confidence + value(k + 1, chance * confidence))
                for confidence, share in CONFIDENCES.items()
            )
            return max(0.0, gain - price * ladder.more(k + 1))

        return 1 - price * ladder.runs[0] + max(0.0, value(0, 1.0) - price * ladder.drafts[0])

    low, high = 0.5, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if surplus(middle) > 0 else (low, middle)
    return low


@pytest.mark.parametrize("name", LADDERS)
def test_floors_come_close_to_the_best_of_all_rules(name: str) -> None:
    """And to no less than the best fixed gamma; the rate they start from hardly matters, it is found on the way."""
    ladder = Ladder.of(LADDERS[name], LIMIT)
    best = best_possible(ladder)
    fixed = max(speedup(ALPHA, gamma, LADDERS[name]) for gamma in range(LIMIT + 1))
    assert best >= fixed - 1e-9
    rate = 1.0
    for _ in range(6):
        floors = Prices(ladder, [rate], [ALPHA]).floors(0, LIMIT)
        floors[0] = 0  # who is asked makes a guess; whether to ask is the planner's to choose
        rate = reached(ladder, lambda k, chance, floors=floors: chance >= floors[k])  # type: ignore[misc]
    assert rate >= max(fixed, 0.985 * best)
    assert reached(ladder, lambda k, chance: chance >= 0.1) <= rate, "one floor for all costs is no better"


def test_a_floor_of_one_tenth_loses_where_rows_cost_something() -> None:
    """What this is for: with costs as they are on a CPU, a fixed floor drafts too far."""
    ladder = Ladder.of(LADDERS["a quick engine"], LIMIT)
    assert reached(ladder, lambda k, chance: chance >= 0.1) < 0.85 * best_possible(ladder)


def test_rates_are_theorem_3_8_where_all_guesses_are_made() -> None:
    costs = LADDERS["a slow engine"]
    rates = Ladder.of(costs, LIMIT).rates([0.7] * LIMIT, [1.0] * LIMIT)
    assert rates == pytest.approx([speedup(0.7, gamma, costs) for gamma in range(LIMIT + 1)])


def test_guesses_that_are_seldom_made_cost_and_bring_little() -> None:
    """Catches a draft that stops early priced as if it had gone on."""
    ladder = Ladder.of(Costs(lambda width: 1 + 0.3 * (width - 1), 0.1, 0.05), 2)
    rates = ladder.rates([0.8, 0.8], [0.5, 0.1])
    assert rates[1] == pytest.approx((1 + 0.4) / (1.05 + 0.5 * 0.4))
    assert rates[2] == pytest.approx((1 + 0.4 + 0.4 * 0.08) / (1.05 + 0.5 * 0.4 + 0.05 * 0.4))


def test_the_best_number_of_guesses_is_found_by_trying_all() -> None:
    for name, costs in LADDERS.items():
        ladder = Ladder.of(costs, LIMIT)
        for alpha in (0.1, 0.4, 0.7, 0.95):
            for rate in (1.0, 1.6):
                prices = Prices(ladder, [rate], [alpha])
                for free in (False, True):
                    time = [ladder.runs[k] + (0 if free else ladder.drafts[k] - ladder.drafts[0]) for k in range(7)]
                    gains = [expected_tokens(alpha, k) - 1 - rate * (time[k] - time[0]) for k in range(LIMIT + 1)]
                    guesses, gain = prices.best(0, alpha, LIMIT, free)
                    assert gain == pytest.approx(max(gains)) and gains[guesses] == pytest.approx(gain), name


def test_a_copy_is_longer_than_a_model_would_guess() -> None:
    prices = Prices(Ladder.of(LADDERS["a quick engine"], LIMIT), [1.2], [0.8])
    assert prices.best(0, 0.9, LIMIT, free=True)[0] > prices.best(0, 0.9, LIMIT)[0] > 0


def test_floors_rise_with_what_time_is_worth() -> None:
    ladder = Ladder.of(LADDERS["a slow engine"], LIMIT)
    slow, fast = (Prices(ladder, [rate], [0.7]).floors(0, LIMIT) for rate in (1.0, 2.0))
    assert fast == pytest.approx([2 * floor for floor in slow])
    assert Prices(ladder, [1.0], [0.0]).floors(0, LIMIT)[0] > 1, "guesses never kept are never worth making"
