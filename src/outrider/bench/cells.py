"""What one prompt gave in one way of decoding: its text, and its seconds as often as it was timed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from outrider.bench.intervals import Interval
from outrider.output import Output
from outrider.trace import PHASES

PLAIN, NARROW = "plain", "plain, unpadded"
"""Names of the ways of decoding without a draft."""


@dataclass(frozen=True)
class Cell:
    """One prompt decoded in one way, as often as it was repeated: the same text each time, other seconds."""

    outputs: tuple[Output, ...]

    @property
    def tokens(self) -> list[int]:
        return self.outputs[0].tokens

    @property
    def seconds(self) -> float:
        """Of decoding, without prefill: the median of the repeats."""
        return median(sum(o.trace.seconds[phase] for phase in PHASES) for o in self.outputs)

    @property
    def whole_seconds(self) -> float:
        """With prefill, the encoder included: the median of the repeats."""
        return median(sum(o.trace.seconds.values()) for o in self.outputs)

    @property
    def work(self) -> Interval:
        """Tokens and seconds: what a speed is made of."""
        return len(self.tokens), self.seconds

    @property
    def shared(self) -> Interval:
        """Sum of the overlaps of examined guesses and their number: what alpha is made of."""
        records = self.outputs[0].trace.records
        return math.fsum(x for r in records for x in r.overlaps), sum(r.examined for r in records)
