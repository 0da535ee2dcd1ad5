"""Worlds drawn anew in every run. A failure prints the world, ready to be pasted."""

from __future__ import annotations

import pytest
from checks import check_law, check_neighbours, check_texts
from hypothesis import HealthCheck, given, settings
from strategies import worlds
from worlds import World


def drawn(cases: int) -> settings:
    return settings(max_examples=cases, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@drawn(200)
@given(worlds(6))
def test_texts(world: World) -> None:
    check_texts(world)


@drawn(150)
@given(worlds(6))
def test_neighbours(world: World) -> None:
    check_neighbours(world)


@drawn(80)
@given(worlds())
def test_laws(world: World) -> None:
    check_law(world)
