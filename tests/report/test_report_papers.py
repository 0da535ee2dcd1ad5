"""The chapter of ``outrider paper``: tables, drawn figures, traces, and what tells several runs apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import result_files
from outrider import theory
from outrider.paper.lab import Amount, Lab
from outrider.paper.results import PaperResults
from outrider.paper.run import run
from outrider.paper.table import Experiment, Found, PaperRow, Unit
from outrider.report.charts import BarChart, Chapter, ColouredTrace, LineChart, TimeLines
from outrider.report.result_file import read_results
from outrider.trace import strict_json


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("results") / "paper.jsonl"
    path.write_text("".join(strict_json(line) + "\n" for line in result_files.papers()), encoding="utf-8")
    return {"paper": path}


def chapter(path: Path) -> Chapter:
    (file,) = read_results([path])
    return file.chapter()


def of_lines(records: list[dict[str, Any]], folder: Path) -> Chapter:
    path = folder / "results.jsonl"
    path.write_text("".join(strict_json(record) + "\n" for record in records), encoding="utf-8")
    return chapter(path)


def lines(found: Chapter, name: str) -> LineChart:
    (chart,) = (chart for chart in found.charts if chart.name == name)
    assert isinstance(chart, LineChart)
    return chart


def bars(found: Chapter, name: str) -> BarChart:
    (chart,) = (chart for chart in found.charts if chart.name == name)
    assert isinstance(chart, BarChart)
    return chart


def test_the_papers_figures_are_drawn(written: dict[str, Path]) -> None:
    """Curves of equation (1) and its kin, cut off where the paper's axes end; tables of them were all there was."""
    found = chapter(written["paper"])
    tokens = lines(found, "figure2-1")
    assert [series.label for series in tokens.series] == ["γ=1", "γ=3", "γ=5", "γ=7", "γ=10", "γ=∞"]
    for gamma, series in zip((1, 3, 5, 7, 10), tokens.series, strict=False):
        assert all(mark.y == theory.expected_tokens(mark.x, gamma) for mark in series.marks)
    assert all(mark.y <= 11 for series in tokens.series for mark in series.marks)
    assert {chart.name for chart in found.charts} >= {"figure3-1", "figure4-1", "figure4-2"}


def test_chens_figure_has_a_line_for_each_task(tmp_path: Path) -> None:
    rows = [
        PaperRow({"task": task, "our target": "t", "K": k}, {},
                 {"ms for 128 tokens": 100.0 + k, "deviation": 5.0, "tokens kept over K + 1": 1 / (k + 1),
                  "ms of a loop": 10.0}, "drawn")
        for task in ("one", "two") for k in (0, 1)
    ]  # fmt: skip
    unit = Unit("u", lambda lab: Found([*rows, PaperRow({"task": "one"}, {"fastest K": 3}, {"fastest K": 1})]))
    made = Experiment("chen-figure1", "Chen et al. 2023", "Figure 1", [unit], "Other models.")
    records = run([made], Lab(Amount.of(quick=True), device="cpu"), PaperResults(None), lambda *told: None)
    times, shares, loops = (lines(of_lines(records, tmp_path), f"chen-figure1-{n}") for n in (1, 2, 3))
    assert [series.label for series in times.series] == ["one", "two"]
    assert [(m.x, m.y, m.low, m.high) for m in times.series[0].marks] == [(0, 100, 95, 105), (1, 101, 96, 106)]
    assert [m.y for m in shares.series[1].marks] == [1, 0.5] and loops.series[0].marks[0].low is None


def test_two_machines_in_one_file_are_told_apart(tmp_path: Path) -> None:
    """Their rows stood in one table, under the first one's name."""
    records = [record | {"others_cores": 0.0} for record in result_files.papers()]
    other = [record | {"machine": record["machine"] | {"cpu": "another"}, "others_cores": 1.5} for record in records]
    found = of_lines([*records, *other], tmp_path)
    assert len(found.sections) == 2 * len({record["experiment"] for record in records}) and not found.facts
    assert sum("This run: cpu another." in section.text for section in found.sections) == len(found.sections) // 2
    assert sum("busy meanwhile" in section.text for section in found.sections) == len(found.sections) // 2


def test_theirs_beside_ours(written: dict[str, Path]) -> None:
    """Bars of both, the trace in its colours, time lines, and why ours differ."""
    found = chapter(written["paper"])
    assert [row.label for row in bars(found, "table2").rows] == ["t5-ende, 7"]
    assert [bar.value for bar in bars(found, "table2").rows[0].bars if bar] == [3.4, 1.9]
    blocks = [block for section in found.sections for block in section.blocks]
    (trace,) = [block for block in blocks if isinstance(block, ColouredTrace)]
    assert [(part.origin, part.text) for part in trace.runs[0]] == [("accepted", "kept"), ("corrected", " own")]
    assert [block.title for block in blocks if isinstance(block, TimeLines)] == ["t5-ende, times"]
    assert any("Why ours differ: Smaller models." in section.text for section in found.sections)
    assert any("Counted on 7 tokens." in section.text for section in found.sections)
