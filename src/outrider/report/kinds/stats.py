"""Charts of the statistics that every decoding command writes: acceptance by depth, tokens per run, time by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider import theory
from outrider.report.charts import Bar, BarChart, BarRow, DataTable, LineChart, Mark, Series
from outrider.report.result_entry import ResultEntry
from outrider.trace import PHASES, wilson

MOST_SERIES = 6
PHASE_NAMES = {
    "draft": "draft: guesses", "target": "target run", "accept": "accept: verification", "host": "host: the rest",
}  # fmt: skip


@dataclass(frozen=True)
class NamedStats:
    """The statistics of one way of decoding."""

    label: str
    stats: ResultEntry


def by_depth(ways: Sequence[NamedStats], title: str = "Acceptance by depth", name: str = "depth") -> LineChart | None:
    """How often guess 1, 2 ... was kept where those before it were, with Wilson's interval."""
    series = []
    for way in ways[:MOST_SERIES]:
        pairs = way.stats.each("depths") if way.stats.has("depths") else []
        marks = tuple(_share(i, pair) for i, pair in enumerate(pairs, 1))
        known = tuple(mark for mark in marks if mark is not None)
        if known:
            series.append(Series(way.label, known))
    if not series:
        return None
    note = "Share of guesses kept where all guesses before them were. Bars: 95 % intervals (Wilson)."
    return LineChart(name, title, "guess of a run", "share kept", tuple(series), note)


def check_depths(stats: ResultEntry) -> None:
    """Refuse impossible counts where they stand, before they are lost in a sum."""
    for depth, pair in enumerate(stats.each("depths") if stats.has("depths") else [], 1):
        _share(depth, pair)


def _share(depth: int, pair: ResultEntry) -> Mark | None:
    values = pair.value
    if not (isinstance(values, list) and len(values) == 2 and all(isinstance(n, int) for n in values)):
        raise pair.fail("", "not two counts, of guesses examined and kept")
    examined, kept = values
    if not 0 <= kept <= examined:
        raise pair.fail("", f"{kept} guesses kept of {examined}")
    return Mark(depth, kept / examined, *wilson(kept, examined)) if examined else None


def run_lengths(
    ways: Sequence[NamedStats], title: str = "Tokens per run", name: str = "run-lengths"
) -> BarChart | None:
    """The share of target runs that gave one token, two, three ..."""
    known = [way for way in ways if way.stats.has("emitted") and any(way.stats.numbers("emitted"))][:MOST_SERIES]
    if not known:
        return None
    counts = [way.stats.numbers("emitted") for way in known]
    longest = max(map(len, counts))
    first = 0 if any(found[0] for found in counts) else 1
    rows = tuple(
        BarRow(
            f"{length} token{'' if length == 1 else 's'}",
            tuple(Bar(100 * (found[length] if length < len(found) else 0) / sum(found)) for found in counts),
        )
        for length in range(first, longest)
    )
    return BarChart(name, title, "% of runs", tuple(way.label for way in known), rows)


def phases(
    ways: Sequence[NamedStats], title: str = "Where the time of a step goes", shares: bool = False
) -> BarChart | None:
    """Milliseconds of a step by phase; with ``shares``, percent of the time."""
    rows = []
    for way in ways:
        seconds, runs = way.stats.at("seconds"), way.stats.number("runs")
        parts = [seconds.known(phase) or 0.0 for phase in PHASES]
        scale = (100 / sum(parts) if sum(parts) else 0.0) if shares else (1000 / runs if runs else 0.0)
        if scale and sum(parts):
            rows.append(BarRow(way.label, tuple(Bar(scale * part) for part in parts)))
    if not rows:
        return None
    label = "% of the time" if shares else "ms per step"
    note = "Prefill is not part of a step." + (" Rows that run together share their steps." if shares else "")
    names = tuple(PHASE_NAMES[phase] for phase in PHASES)
    return BarChart("phases", title, label, names, tuple(rows), note, stacked=True)


def expected_curve(label: str, alpha: float, costs: theory.Costs, most: int, colour: int) -> Series:
    """Theorem 3.8 for 0 to ``most`` guesses."""
    chance = min(1.0, max(0.0, alpha))
    marks = tuple(Mark(gamma, theory.speedup(chance, gamma, costs)) for gamma in range(most + 1))
    return Series(label, marks, "curve", colour)


def table_of(title: str, facts: Mapping[str, str]) -> DataTable:
    return DataTable(title, ("", ""), tuple(facts.items()), frozenset({1}))


def conditions(entry: ResultEntry, key: str) -> tuple[tuple[str, str], ...]:
    """Facts about a machine and its software, as they were written."""
    if not entry.has(key):
        return ()
    return tuple((name.replace("_", " "), _plain(value)) for name, value in entry.at(key).mapping().items())


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_plain(part)}" for name, part in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)
