"""The batch that a policy plans for, and what is believed of it before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property

from outrider.core.protocols import Drafter
from outrider.core.traits import DrafterTraits, traits_of
from outrider.planning.acceptance import CHOSEN, PRIOR
from outrider.theory import ByNumber, Costs

ASKING = 0.05
"""What asking a drafter costs where nothing is known, in plain runs: one that never has a guess must be left alone."""


RESTS_AFTER = 8
"""Runs without guesses after which a drafter beside CUDA graphs is told nothing more, until it is asked again."""


_TOLD_APART = 4
"""Up to so many rows the cost of a step is known for each number of them, then for powers of two."""


_A_BEAM = 0.77
"""A level of a draft tree is kept if every hypothesis of a beam search is in it: to this power of their number, about.
Found with trees half as wide again as the search: 0.59 (two beams) and 0.33 (four) of SmolLM2-135M with its head, 0.66
and 0.39 of ``t5-ende`` with its draft model."""


@dataclass(frozen=True)
class Setting:
    """The batch a policy plans for."""

    rows: int
    limit: int  # the most guesses a run has room for
    drafter: Drafter
    shape: Hashable  # steps of one shape have one cost
    widths: ByNumber = 1.0  # what the target declares that runs cost by width, in plain ones
    widths_of: Callable[[int], ByNumber] | None = None  # the same for fewer rows; None: empty slots take time, too
    splits: bool = True  # guesses not made take no time, and drafts are timed apart from runs; not so on a GPU
    joint: bool = False  # rows may learn from each other: the text is the same whatever gamma is, or no seed is shared
    sampled: bool = False  # above temperature 0, where guesses may cost more and are kept less often
    beams: int = 1  # more: one beam search, and a guess is a level of its draft tree

    def running(self, rows: int) -> Setting:
        """The same with so many rows in a run, where empty slots take no time: about as many, so that few are told
        apart."""
        if self.widths_of is None or rows == 0:
            return self
        about = min(self.rows, rows if rows <= _TOLD_APART else 1 << (rows - 1).bit_length())
        return replace(self, rows=about, widths=self.widths_of(about), widths_of=None)

    @cached_property
    def traits(self) -> DrafterTraits:
        """What the drafter declares."""
        return traits_of(self.drafter)

    @property
    def plans(self) -> bool:
        """Whether the drafter itself stops where another guess is not worth its cost."""
        return self.traits.stops_itself and self.beams == 1

    @property
    def declines(self) -> bool:
        """Whether the drafter, asked, makes no guess that is not worth its time: asking it costs next to nothing."""
        return self.traits.cheap_to_ask and self.splits and self.beams == 1

    @property
    def prior(self) -> float:
        """Acceptance to expect before anything is known."""
        if self.beams > 1:
            return _A_BEAM**self.beams
        return CHOSEN if self.plans and self.splits and not self.sampled else PRIOR

    @property
    def declared(self) -> Costs:
        """What to believe before anything is measured."""
        c = self.traits.cost_for(max(self.rows, self.beams), self.sampled) * self.beams
        if self.splits:
            return Costs(self.widths, c, ASKING)
        widths = Costs(self.widths)
        return Costs(lambda width: widths.run(width) + c * (width - 1))  # steps as a whole
