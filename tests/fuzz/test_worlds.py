"""Worlds drawn anew in every run. A failure prints the world, ready to be pasted; see ``worlds.py``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from checks import check_distribution, check_neighbours, check_texts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from strategies import worlds
from worlds import World

from helpers import run_only_if_asked

TEXTS = worlds(new=(3, 1, 8))
NEIGHBOURS = worlds(new=(8, 1, 20), beside=(1, 3))
DISTRIBUTIONS = worlds()
CASES: dict[str, tuple[Callable[[World], None], SearchStrategy[World], int]] = {
    "texts": (check_texts, TEXTS, 200),
    "neighbours": (check_neighbours, NEIGHBOURS, 80),
    "distributions": (check_distribution, DISTRIBUTIONS, 120),
}


def drawn(name: str, times: int = 1) -> None:
    """As many worlds as ``CASES`` says, or many times as many, each checked."""
    check, strategy, cases = CASES[name]

    @settings(
        max_examples=cases * times,
        suppress_health_check=list(HealthCheck),  # worlds are large, and a loaded machine is slow
        phases=[Phase.explicit, Phase.generate, Phase.shrink],  # explaining a failure runs it a hundred times more
    )
    @given(strategy)
    def each(world: World) -> None:
        check(world)

    each()


@pytest.mark.parametrize("name", CASES)
def test_worlds(name: str) -> None:
    """Catches options, drafters, couplings, policies and neighbours that are wrong together, a few hundred times."""
    drawn(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_worlds(name: str, request: pytest.FixtureRequest) -> None:
    """The same, a few thousand times: ``pytest tests/fuzz -m slow``."""
    run_only_if_asked(request)
    drawn(name, 20)
