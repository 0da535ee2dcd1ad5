"""A table of a paper before and after it is filled: units of work, and rows with their figures beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import require
from outrider.paper.lab import Lab
from outrider.report.charts import ColouredTrace, TimeLines

Value = float | int | str | None


NO_GUESS = "no guess was made"


def rounded(value: float, digits: int) -> float | None:
    """None where there is no number: what it would count has not happened."""
    return round(value, digits) if math.isfinite(value) else None


@dataclass(frozen=True)
class PaperRow:
    """One row: what it is about, the paper's figures, ours, and the reason where either has none."""

    about: Mapping[str, Value]
    theirs: Mapping[str, Value] = field(default_factory=dict)
    ours: Mapping[str, Value] = field(default_factory=dict)
    why: str = ""

    def __post_init__(self) -> None:
        """An empty cell is one that is None, and one that theirs has and ours has not."""
        unknown = None in (*self.ours.values(), *self.theirs.values()) or not set(self.theirs) <= set(self.ours)
        empty = not self.ours or not self.theirs or unknown
        require(bool(self.why) or not empty, f"a row about {dict(self.about)} has an empty cell and no reason for it")

    def to_json(self) -> dict[str, Any]:
        return {"about": dict(self.about), "theirs": dict(self.theirs), "ours": dict(self.ours), "why": self.why}


@dataclass(frozen=True)
class Found:
    """What a unit gave: rows, pictures that a terminal can show too, and what must be said of them."""

    rows: Sequence[PaperRow] = ()
    pictures: Sequence[ColouredTrace | TimeLines] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Unit:
    """Work that is done whole or not at all: the steps by which an interrupted run goes on."""

    name: str
    run: Callable[[Lab], Found]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper."""

    name: str  # as --only takes it
    paper: str
    title: str
    units: Sequence[Unit]
    differs: str  # why ours cannot equal theirs, and what is counted in another way, in short sentences
