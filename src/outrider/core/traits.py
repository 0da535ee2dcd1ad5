"""What a drafter declares about itself, in one record: read by policies and by drafters made of others."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol, runtime_checkable

from outrider.core.protocols import Drafter
from outrider.core.sampling import Sampling
from outrider.errors import require


@dataclass(frozen=True)
class DrafterTraits:
    """All that is known of a drafter before it has drafted anything. The defaults are those of a small head.

    Whether its steps can be captured as CUDA graphs depends on device and rows, so its session says that.
    """

    cost: float = 0.05  # c: time of a guess over time of a plain step, for one row
    batched_cost: float | None = None  # the same where several rows are drafted for; None: as for one
    sampled_cost: float | None = None  # the same above temperature 0; None: as at temperature 0
    gamma: int | None = None  # guesses worth asking for where nobody chooses; None: as many as there is room for
    stops_itself: bool = False  # ends each draft where another guess is not worth its time
    cheap_to_ask: bool = False  # asked, it makes no guess at all where none is worth its time
    point_masses: bool = False  # its guesses are not drawn: temperature, top-k and top-p mean nothing to it
    sampling: Sampling | None = None  # options it drafts with instead of the target's

    def __post_init__(self) -> None:
        costs = {"cost": self.cost, "batched_cost": self.batched_cost, "sampled_cost": self.sampled_cost}
        for name, cost in costs.items():
            rule = f"{name} of a drafter must be 0 or more target runs per guess, got {cost!r}"
            require(cost is None or 0 <= cost < inf, rule)
        require(self.gamma is None or self.gamma >= 1, f"gamma of a drafter must be at least 1, got {self.gamma!r}")

    def cost_for(self, rows: int, sampled: bool = False) -> float:
        """c of a guess beside so many rows, at temperature 0 or ``sampled``."""
        several = self.cost if rows == 1 or self.batched_cost is None else self.batched_cost
        if sampled and self.sampled_cost is not None:
            return max(self.sampled_cost, several)
        return several

    def either(self, other: DrafterTraits) -> DrafterTraits:
        """Of a drafter whose guesses come from this one or the other, row by row: which, is not known beforehand."""
        batched = self.batched_cost is not None or other.batched_cost is not None
        sampled = self.sampled_cost is not None or other.sampled_cost is not None
        return DrafterTraits(
            cost=max(self.cost, other.cost),
            batched_cost=max(self.cost_for(2), other.cost_for(2)) if batched else None,
            sampled_cost=max(self.cost_for(1, True), other.cost_for(1, True)) if sampled else None,
            gamma=None if self.gamma is None or other.gamma is None else max(self.gamma, other.gamma),
            stops_itself=self.stops_itself and other.stops_itself,
            cheap_to_ask=self.cheap_to_ask and other.cheap_to_ask,
            point_masses=self.point_masses and other.point_masses,
            sampling=self.sampling or other.sampling,
        )


@runtime_checkable
class Declaring(Protocol):
    """A drafter that declares its traits; one without has the defaults."""

    @property
    def traits(self) -> DrafterTraits: ...


def traits_of(drafter: Drafter) -> DrafterTraits:
    """What a drafter declares, or the defaults. Nothing else asks whether it declares anything."""
    if not isinstance(drafter, Declaring):
        return DrafterTraits()
    traits: object = drafter.traits
    require(
        isinstance(traits, DrafterTraits),
        f"traits of drafter {drafter.name!r} must be a DrafterTraits, got {traits!r}; see docs/adding-a-drafter.md",
    )
    return drafter.traits


def declared_cost(drafter: Drafter, rows: int = 1, sampled: bool = False) -> float:
    """c of a guess beside so many rows, at temperature 0 or ``sampled``, as the drafter declares it."""
    return traits_of(drafter).cost_for(rows, sampled)
