"""Every trait of a drafter against every drafter made of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from outrider.core.protocols import Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits, traits_of
from outrider.drafters import Cascade, Copying, Fallback, Mixture, ModelDrafter, Nothing, Standardised
from outrider.errors import BadOption
from outrider.models.toy import ToyModel

MODEL = ToyModel(12, seed=3)

VALUES: dict[str, Any] = {
    "cost": 0.4,
    "batched_cost": 0.7,
    "sampled_cost": 0.9,
    "gamma": 3,
    "stops_itself": True,
    "cheap_to_ask": True,
    "point_masses": True,
    "sampling": Sampling(0.5),
}
"""Of every trait a value that is not the default."""

DRAFTERS: dict[str, Callable[[ModelDrafter], Drafter]] = {
    "fallback": lambda inner: Fallback(inner, inner),
    "mixture": lambda inner: Mixture(inner, inner),
    "cascade": lambda inner: Cascade(Copying(), inner),
    "standardised": lambda inner: Standardised(inner, 0.7),
}

OWN: dict[tuple[str, str], Any] = {
    ("cascade", "gamma"): 6,
    ("cascade", "stops_itself"): False,
    ("standardised", "point_masses"): BadOption,
    ("standardised", "sampling"): BadOption,
}
"""Where a wrapper does not pass on what all the drafters inside declare, and what it declares instead."""


@pytest.mark.parametrize("trait", [each.name for each in fields(DrafterTraits)])
@pytest.mark.parametrize("wrapper", DRAFTERS)
def test_every_wrapper_passes_on_every_trait(wrapper: str, trait: str) -> None:
    """Fallback and Cascade forgot costs, and all but Mixture the cost for several rows. A new trait fails here until
    it has a value above, and every wrapper passes it on or says why not."""
    inner, value = ModelDrafter(MODEL), VALUES[trait]
    assert getattr(inner.traits, trait) != value, "a value that tells nothing"
    inner.traits = replace(inner.traits, **{trait: value})
    expected = OWN.get((wrapper, trait), value)
    if expected is BadOption:
        with pytest.raises(BadOption, match="temperature|sampling options"):
            DRAFTERS[wrapper](inner)
    else:
        assert getattr(traits_of(DRAFTERS[wrapper](inner)), trait) == expected


def test_of_two_drafters_the_dearer_counts() -> None:
    """And what either needs to do by itself, both must."""
    plain, dear = DrafterTraits(0.1, gamma=2), DrafterTraits(0.05, 0.6, 0.9, 4, True, True, True)
    for both in (plain.either(dear), dear.either(plain)):
        assert both == DrafterTraits(0.1, 0.6, 0.9, 4)
        assert (both.cost_for(1), both.cost_for(2), both.cost_for(8)) == (0.1, 0.6, 0.6)
        assert both.cost_for(1, sampled=True) == 0.9
    assert plain.either(plain).batched_cost is None and plain.either(DrafterTraits()).gamma is None


def test_a_mixture_stops_itself_whatever_is_inside() -> None:
    for inner in (Nothing(), ModelDrafter(MODEL)):
        made = traits_of(Mixture(inner, inner))
        assert made.stops_itself and made.cheap_to_ask
    assert traits_of(Mixture(Copying(), ModelDrafter(MODEL), cost=0.3)).cost_for(8) == 0.3


def test_a_drafter_that_declares_nothing_has_the_defaults() -> None:
    class Own:
        name = "own"

        def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
            return Nothing().start(rows, shape, target)

    assert traits_of(Own()) == DrafterTraits()
    wrong = Own()
    wrong.traits = {"cost": 1.0}  # type: ignore[attr-defined]
    with pytest.raises(BadOption, match=r"traits of drafter 'own' must be a DrafterTraits, got \{'cost': 1.0\}"):
        traits_of(wrong)


@pytest.mark.parametrize("wrong", [{"cost": -1.0}, {"cost": float("nan")}, {"batched_cost": -0.1}, {"gamma": 0}])
def test_a_trait_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=f"^{next(iter(wrong))} of a drafter must be .*, got "):
        DrafterTraits(**wrong)
