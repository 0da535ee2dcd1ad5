"""A drafter with sampling options of its own (Leviathan et al. 2023, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import (
    Capped,
    Draft,
    Drafter,
    DraftSession,
    Priced,
    Session,
    Shape,
    Source,
    Spending,
    declared_cost,
    forkable,
)
from outrider.core.sampling import Sampling
from outrider.drafters.prices import Prices
from outrider.errors import require
from outrider.trace import Level


class Standardised:
    """Drafts at another temperature, top-k or top-p than the target's; None keeps the target's.

    The q it reports is the q it drew from, which is all that exactness needs. At temperature 0 only the
    likeliest guess can be right, so nothing is changed there.
    """

    def __init__(
        self, drafter: Drafter, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None
    ) -> None:
        require(
            not getattr(drafter, "point_masses", False),
            f"drafter {drafter.name!r} draws nothing, so it has no temperature, top-k or top-p; leave them out",
        )
        require(
            getattr(drafter, "sampling", None) is None,
            f"drafter {drafter.name!r} has sampling options of its own already; leave them out here or there",
        )
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        self.drafter = drafter
        self.own: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        settings = ", ".join(f"{k.replace('_', '-')} {v:g}" for k, v in self.own.items())
        self.name = f"{drafter.name} at {settings}" if settings else drafter.name
        self.sampling_for(Sampling(1.0))  # refuses bad values now

    def __getattr__(self, name: str) -> Any:
        """What else a drafter tells of itself, such as ``gamma``, is what the drafter inside tells."""
        if name == "drafter":  # not made yet: copying and unpickling ask too early
            raise AttributeError(name)
        return getattr(self.drafter, name)

    @property
    def cost(self) -> float:
        return declared_cost(self.drafter)

    def sampling_for(self, target: Sampling) -> Sampling:
        """The options to draft with beside a target with these."""
        if target.greedy:
            return target
        return replace(target, **self.own)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _StandardisedSession(self, self.drafter.start(rows, shape, target))


class _StandardisedSession:
    def __init__(self, drafter: Standardised, session: DraftSession) -> None:
        self.drafter: Standardised = drafter
        self.session = session

    @property
    def recordable(self) -> bool:
        return bool(getattr(self.session, "recordable", False))

    @property
    def prices(self) -> Prices | None:
        return self.session.prices if isinstance(self.session, Priced) else None

    @prices.setter
    def prices(self, prices: Prices | None) -> None:
        if isinstance(self.session, Priced):
            self.session.prices = prices

    @property
    def caps(self) -> Tensor | None:
        return self.session.caps if isinstance(self.session, Capped) else None

    @caps.setter
    def caps(self, caps: Tensor | None) -> None:
        if isinstance(self.session, Capped):
            self.session.caps = caps

    @property
    def spent(self) -> int | None:
        return self.session.spent if isinstance(self.session, Spending) else None

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.session.admit(row, prompt, source)

    def release(self, row: int) -> None:
        self.session.release(row)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        return self.session.propose(gamma, self.drafter.sampling_for(sampling), noise, at)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        self.session.commit(tokens, count)

    @property
    def levels(self) -> tuple[Level, ...]:
        return getattr(self.session, "levels", ())

    def rewind(self, lengths: Tensor) -> None:
        self.session.rewind(lengths)

    def select(self, rows: Tensor) -> None:
        self.session.select(rows)

    def fork(self, rows: Tensor) -> _StandardisedSession:
        return _StandardisedSession(self.drafter, forkable(self.session).fork(rows))
