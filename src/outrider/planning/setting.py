"""The batch that a policy plans for, and what is believed of it before anything is measured."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from outrider.core.protocols import Drafter
from outrider.core.traits import declared_cost, traits_of
from outrider.planning.acceptance import CHOSEN, PRIOR
from outrider.theory import ByNumber, Costs

ASKING = 0.05
"""What asking a drafter costs where nothing is known, in plain runs: one that never has a guess must be left alone."""


@dataclass(frozen=True)
class Setting:
    """The batch a policy plans for."""

    rows: int
    limit: int  # the most guesses a run has room for
    drafter: Drafter
    shape: Hashable  # steps of one shape have one cost
    widths: ByNumber = 1.0  # what the target declares that runs cost by width, in plain ones
    splits: bool = True  # guesses not made take no time, and drafts are timed apart from runs; not so on a GPU
    joint: bool = False  # rows may learn from each other: the text is the same whatever gamma is, or no seed is shared

    @property
    def plans(self) -> bool:
        """Whether the drafter itself stops where another guess is not worth its cost."""
        return traits_of(self.drafter).stops_itself

    @property
    def declines(self) -> bool:
        """Whether the drafter, asked, makes no guess that is not worth its time: asking it costs next to nothing."""
        return traits_of(self.drafter).cheap_to_ask and self.splits

    @property
    def prior(self) -> float:
        """Acceptance to expect before anything is known."""
        return CHOSEN if self.plans and self.splits else PRIOR

    @property
    def declared(self) -> Costs:
        """What to believe before anything is measured."""
        c = declared_cost(self.drafter, self.rows)
        if self.splits:
            return Costs(self.widths, c, ASKING)
        widths = Costs(self.widths)
        return Costs(lambda width: widths.run(width) + c * (width - 1))  # steps as a whole
