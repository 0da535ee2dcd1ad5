"""c as measured: Definition 3.7 of Leviathan et al., with a plain step as a run of the target."""

from __future__ import annotations

import pytest

from outrider.bench import measure
from outrider.bench.cells import NARROW, PLAIN, Cell
from outrider.bench.measure import Way
from outrider.output import Output
from outrider.trace import Record, Trace


def cell(drafted: int, runs: int, draft: float, target: float, rest: float = 0.0) -> Cell:
    """A text of so many runs, each with so many guesses, none of them kept, which took so many seconds a run."""
    records = [Record(0, at, (1,) * drafted, 0, 2, (0.5,) * drafted, 1) for at in range(runs)]
    seconds = {"draft": draft * runs, "target": target * runs, "accept": rest * runs, "host": 0.0, "prefill": 9.0}
    return Cell((Output("", [2] * runs, "length", 1, Trace(records=records, runs=runs, seconds=seconds)),))


def row(gamma: int, draft: float, target: float, plain: Cell) -> measure.MeasuredRow:
    way = Way(None, "one", gamma)  # type: ignore[arg-type]
    cells = {"one": cell(gamma, 5, draft, target, 0.5), PLAIN: plain, NARROW: plain}
    return measure.measured_row(way, "one", 0.0, "all", [cells], None)


def test_c_is_over_a_plain_step() -> None:
    """It was over the target's own part of a run that checks guesses: the wider the run, the smaller c, and another
    number than the theory and the glossary call c."""
    plain = cell(0, 10, 0.125, 0.75, 0.125)
    narrow, wide = row(2, 0.5, 1.0, plain), row(2, 0.5, 4.0, plain)
    assert narrow.cost == wide.cost == pytest.approx(0.25)


def test_what_a_call_takes_is_shared_by_its_guesses() -> None:
    plain = cell(0, 10, 0.0, 1.0)
    assert row(1, 0.5, 1.0, plain).cost == pytest.approx(0.5) and row(4, 0.5, 1.0, plain).cost == pytest.approx(0.125)
