"""Where a draft ends by its own confidence: one floor for all, or a price for every guess of every row."""

from __future__ import annotations

import pytest
import torch

from outrider.core.prices import Ladder, Prices
from outrider.core.sampling import Sampling
from outrider.drafters.base import Reach

ACTIVE = torch.ones(3, dtype=torch.bool)
SAMPLED = Sampling(1.0)


def q(*largest: float) -> torch.Tensor:
    """Distributions over ten tokens whose largest probability is this."""
    return torch.stack([torch.tensor([top] + [(1 - top) / 9] * 9) for top in largest])


def test_one_floor_under_the_product() -> None:
    reach = Reach(0.3, ACTIVE)
    for expected in ([True, True, False], [True, False, False]):
        reach.took(q(0.9, 0.5, 0.2), q(0.9, 0.5, 0.2).log(), SAMPLED)
        assert reach.going.tolist() == expected


def test_rows_have_floors_of_their_own() -> None:
    """Catches one row's price held against another: what a row drafts must follow from its own text."""
    ladder = Ladder((1.0, 1.1, 1.3, 1.6), (0.0, 0.1, 0.2, 0.3))
    prices = Prices(ladder, [1.0, 2.0, 3.0], [0.8, 0.8, 0.8])
    floors = [prices.floors(row, 3) for row in range(3)]
    reach, chance = Reach(0.1, ACTIVE, prices, 3), [1.0] * 3
    expected = [True] * 3
    for made, sure in enumerate([(0.7, 0.7, 0.7), (0.9, 0.99, 0.99)], 1):
        reach.took(q(*sure), q(*sure).log(), SAMPLED)
        chance = [c * s for c, s in zip(chance, sure, strict=True)]
        expected = [e and c >= f[made] for e, c, f in zip(expected, chance, floors, strict=True)]
        assert reach.going.tolist() == expected
    assert expected == [True, False, False], "the rows do not differ: nothing was tested"


def test_behind_the_last_guess_there_is_no_floor() -> None:
    prices = Prices(Ladder((1.0, 1.1), (0.0, 0.1)), [1.0], [0.5])
    reach = Reach(0.1, ACTIVE[:1], prices, 1)
    reach.took(q(0.01), q(0.01).log(), SAMPLED)
    assert not reach.over


@pytest.mark.parametrize("prices", [None, Prices(Ladder((1.0, 9.0, 18.0), (0.0, 1.0, 2.0)), [1.0] * 3, [0.1] * 3)])
def test_a_floor_of_nothing_is_never_stopped(prices: Prices | None) -> None:
    """Whoever asked for drafts of full length gets them, whatever they cost."""
    reach = Reach(0.0, ACTIVE, prices, 2)
    reach.took(q(0.2, 0.2, 0.2), q(0.2, 0.2, 0.2).log(), SAMPLED)
    assert reach.going.all() and not reach.over
