"""Traces and time lines of a result file: as they were, as text, as SVG, and refused where they are something else."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import BadOption
from outrider.report import svg
from outrider.report.charts import ColouredTrace, TimeLine, TimeLines, TimePart, TracePart
from outrider.report.picture_json import from_json, to_json
from outrider.report.result_entry import ResultEntry
from outrider.report.time_lines import WIDE, as_text

TRACE = ColouredTrace(
    "a text",
    (
        (TracePart("accepted", "The"), TracePart("rejected", " cat"), TracePart("unread", " sat"),
         TracePart("corrected", " dog")),
        (TracePart("accepted", " ran"), TracePart("bonus", " off")),
        (TracePart("plain", "."),),
    ),
)  # fmt: skip
LETTERS = {"target reads": "E", "draft reads": "e", "guesses": "d", "target run": "T"}


def lines(*parts: tuple[str, float]) -> TimeLine:
    return TimeLine("way", tuple(TimePart(kind, length) for kind, length in parts))


TIMES = TimeLines(
    "times", "two ways", "ms", LETTERS, "target run",
    (lines(("target reads", 18.0), ("target run", 27.0), ("target run", 27.0)),
     lines(("target reads", 18.0), ("guesses", 9.0), ("target run", 18.0))),
)  # fmt: skip


def test_there_and_back() -> None:
    for picture in (TRACE, TIMES):
        assert from_json(ResultEntry(to_json(picture), "file")) == picture


def test_as_text() -> None:
    """A part is as wide as it was long, and a bar ends a run: runs of one letter each ran into each other."""
    assert as_text(TRACE) == [" 1 The[- cat-][ dog]", " 2  ran[ off]", " 3 [.]"]
    first, second = as_text(TIMES)
    assert first == "way " + "E" * 18 + "T" * 26 + "|" + "T" * 26 + "|" and len(first) == WIDE + 4
    assert second == "way " + "E" * 18 + "d" * 9 + "T" * 17 + "|"
    assert [line.length for line in TIMES.lines] == [72.0, 45.0]


def test_a_table_stands_beside_the_picture() -> None:
    table = TIMES.table
    assert table.columns == ("", "ms in all", *LETTERS)
    assert table.rows[1] == ("way", "45", "18 (1)", "", "9 (1)", "18 (1)")


def test_every_part_is_drawn_to_scale() -> None:
    """Catches a colour per part instead of per kind, and ways on scales of their own."""
    drawn = svg.standalone(TIMES)
    assert drawn.count("<title>way, target run: 27.0 ms</title>") == 2
    assert drawn.count('class="bar c3"') == 3 + 1 and drawn.count('class="bar c0"') == 2 + 1  # and the legend
    assert 'class="bar c1"' not in drawn  # a kind that nobody has


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"picture": "painting"}, "not 'trace' or 'time lines'"),
        ({"runs": [[["accepted"]]]}, r"runs\[0\]\[0\]: not one of accepted"),
        ({"runs": [[["guessed", "x"]]]}, "not one of accepted"),
        ({"runs": [3]}, "not a list of parts"),
    ],
)
def test_what_is_not_a_trace_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        from_json(ResultEntry(to_json(TRACE) | change, "results.jsonl, line 3"))


@pytest.mark.parametrize("part", [["target run", -1.0], ["target run", "1"], ["sleep", 1.0], ["guesses", True], []])
def test_what_is_no_stretch_of_time_is_named(part: list[Any]) -> None:
    with pytest.raises(BadOption, match=r"lines\[0\].parts\[0\]: not one of target reads"):
        from_json(ResultEntry(to_json(TIMES) | {"lines": [{"label": "x", "parts": [part]}]}, "file"))
