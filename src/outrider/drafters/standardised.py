"""A drafter with sampling options of its own (Leviathan et al. 2023, section 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling, SamplingByRow
from outrider.core.traits import DrafterTraits, traits_of
from outrider.drafters.composite import CompositeSession
from outrider.errors import require


class Standardised:
    """Drafts at another temperature, top-k or top-p than the target's; None keeps the target's.

    The q it reports is the q it drew from, which is all that exactness needs. At temperature 0 only the
    likeliest guess can be right, so nothing is changed there.
    """

    def __init__(
        self, drafter: Drafter, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None
    ) -> None:
        require(
            not traits_of(drafter).point_masses,
            f"drafter {drafter.name!r} draws nothing, so it has no temperature, top-k or top-p; leave them out",
        )
        require(
            traits_of(drafter).sampling is None,
            f"drafter {drafter.name!r} has sampling options of its own already; leave them out here or there",
        )
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        self.drafter = drafter
        self.own: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        settings = ", ".join(f"{k.replace('_', '-')} {v:g}" for k, v in self.own.items())
        self.name = f"{drafter.name} at {settings}" if settings else drafter.name
        self.sampling_for(Sampling(1.0))  # refuses bad values now

    @property
    def traits(self) -> DrafterTraits:
        return traits_of(self.drafter)

    def sampling_for(self, target: Sampling) -> Sampling:
        """The options to draft with beside a target with these."""
        if isinstance(target, SamplingByRow):
            return SamplingByRow.of([(self.sampling_for(options), rows) for options, rows in target.groups])
        if target.greedy:
            return target
        return replace(target, **self.own)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _StandardisedSession(self, self.drafter.start(rows, shape, target))


class _StandardisedSession(CompositeSession):
    def __init__(self, drafter: Standardised, session: DraftSession) -> None:
        super().__init__(session)
        self.drafter = drafter

    @property
    def capturable(self) -> bool:
        return True

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        return self.sessions[0].propose(gamma, self.drafter.sampling_for(sampling), noise, at)
