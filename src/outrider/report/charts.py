"""What a report is made of, before it is drawn: charts, tables and traces in sections, one chapter for each file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from outrider.report.values import tick_label, with_interval

Form = Literal["line", "points", "curve"]


@dataclass(frozen=True)
class Mark:
    """A measured point, with its interval where one is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one kind. ``line``: joined; ``points``: not joined; ``curve``: a formula, drawn behind the others."""

    label: str
    marks: tuple[Mark, ...]
    form: Form = "line"
    colour: int | None = None  # that of another series by its place; None: by its own


@dataclass(frozen=True)
class LineChart:
    """Values over a number."""

    name: str  # of the file, without its ending
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    note: str = ""
    log_x: bool = False  # 1, 2, 4, 8 ... at equal distances
    reference: tuple[float, str] | None = None  # a level to compare with, and what it is

    @property
    def table(self) -> DataTable:
        """The same values as numbers."""
        xs = sorted({mark.x for series in self.series for mark in series.marks})
        found = [{mark.x: mark for mark in series.marks} for series in self.series]
        rows = tuple(
            (tick_label(x), *(with_interval(m.y, m.low, m.high) if (m := marks.get(x)) else "" for marks in found))
            for x in xs
        )
        return DataTable(self.title, (self.x_label, *(series.label for series in self.series)), rows)


@dataclass(frozen=True)
class Bar:
    """A value, with its interval where one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class BarRow:
    """The bars of one label, one for each series; None: not measured."""

    label: str
    bars: tuple[Bar | None, ...]


@dataclass(frozen=True)
class BarChart:
    """Values by name; stacked, they are parts of a whole."""

    name: str
    title: str
    value_label: str
    series: tuple[str, ...]
    rows: tuple[BarRow, ...]
    note: str = ""
    stacked: bool = False
    reference: tuple[float, str] | None = None

    @property
    def table(self) -> DataTable:
        """The same values as numbers."""
        rows = tuple(
            (row.label, *("" if b is None else with_interval(b.value, b.low, b.high) for b in row.bars))
            for row in self.rows
        )
        columns = self.series if len(self.series) > 1 else (self.value_label,)
        return DataTable(self.title, ("", *columns), rows)


@dataclass(frozen=True)
class DataTable:
    """The first column is text, the others are numbers unless ``text`` says so."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: frozenset[int] = frozenset()  # further columns of text


@dataclass(frozen=True)
class TracePart:
    """Characters of one origin: accepted, rejected, unread (behind a rejected guess), corrected, bonus or plain."""

    origin: str
    text: str


@dataclass(frozen=True)
class ColouredTrace:
    """Figure 1 of Leviathan et al.: one line for every target run."""

    title: str
    runs: tuple[tuple[TracePart, ...], ...]
    left_out: int = 0  # runs behind those


@dataclass(frozen=True)
class TimePart:
    """A stretch of time spent on one thing."""

    kind: str
    length: float


@dataclass(frozen=True)
class TimeLine:
    """What was done one after another."""

    label: str
    parts: tuple[TimePart, ...]

    @property
    def length(self) -> float:
        return sum(part.length for part in self.parts)


@dataclass(frozen=True)
class TimeLines:
    """Figure 5 of Leviathan et al.: ways of doing the same thing, below each other on one scale."""

    name: str
    title: str
    unit: str
    letters: Mapping[str, str]  # kind of part -> what stands for it in a terminal; in the order of a legend
    ends: str  # the kind that ends a run
    lines: tuple[TimeLine, ...]
    note: str = ""

    @property
    def table(self) -> DataTable:
        """Time and number of each kind."""
        rows = tuple(
            (line.label, f"{line.length:.4g}", *(self._sum(line, kind) for kind in self.letters)) for line in self.lines
        )
        return DataTable(self.title, ("", f"{self.unit} in all", *self.letters), rows)

    @staticmethod
    def _sum(line: TimeLine, kind: str) -> str:
        parts = [part.length for part in line.parts if part.kind == kind]
        return f"{sum(parts):.4g} ({len(parts)})" if parts else ""


Chart = LineChart | BarChart | TimeLines
ReportBlock = LineChart | BarChart | TimeLines | DataTable | ColouredTrace


@dataclass(frozen=True)
class ReportSection:
    title: str
    blocks: tuple[ReportBlock, ...]
    text: str = ""


@dataclass(frozen=True)
class Headline:
    """One number to see first."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Chapter:
    """Everything one result file says."""

    title: str
    headlines: tuple[Headline, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # machine, versions, options
    sections: tuple[ReportSection, ...] = ()
    missing: tuple[str, ...] = ()  # what a reader may look for and this file does not hold
    failures: str = ""  # of what was asked for, in words; empty: none

    @property
    def charts(self) -> list[Chart]:
        blocks = [block for section in self.sections for block in section.blocks]
        return [block for block in blocks if isinstance(block, (LineChart, BarChart, TimeLines))]


def sections(*found: ReportSection | None) -> tuple[ReportSection, ...]:
    """Those that have something to show."""
    return tuple(section for section in found if section is not None and section.blocks)


def section(title: str, blocks: Iterable[ReportBlock | None], text: str = "") -> ReportSection | None:
    """A section of what there is; None where there is nothing."""
    known = tuple(block for block in blocks if block is not None)
    return ReportSection(title, known, text) if known else None
