"""What a report shows of each kind of result: numbers in the right chart, the theory behind them, what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import result_files
from outrider import theory
from outrider.report.charts import BarChart, Chapter, Chart, ColouredTrace, DataTable, LineChart
from outrider.report.kinds import KINDS
from outrider.report.result_file import read_results
from outrider.trace import PHASES, Record, Trace, strict_json, wilson


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return result_files.write_all(tmp_path_factory.mktemp("results"))


def chapter(path: Path) -> Chapter:
    (file,) = read_results([path])
    return file.chapter()


def of_record(record: dict[str, Any], folder: Path) -> Chapter:
    path = folder / "result.json"
    path.write_text(strict_json(record), encoding="utf-8")
    return chapter(path)


def charts(found: Chapter) -> dict[str, Chart]:
    return {chart.name: chart for chart in found.charts}


def lines(found: Chapter, name: str) -> LineChart:
    chart = charts(found)[name]
    assert isinstance(chart, LineChart)
    return chart


def bars(found: Chapter, name: str) -> BarChart:
    chart = charts(found)[name]
    assert isinstance(chart, BarChart)
    return chart


def tables(found: Chapter) -> list[DataTable]:
    return [block for section in found.sections for block in section.blocks if isinstance(block, DataTable)]


KIND_OF = {
    "measure": "measure", "cpu": "bench cpu", "serve": "bench serve", "load": "bench serve", "verify": "verify",
    "generate": "texts", "batch": "texts", "gpu": "bench gpu", "trace": "trace",
    "paper": "outrider paper", "plan": "plan",
}  # fmt: skip


def test_every_kind_is_recognised(written: dict[str, Path]) -> None:
    """Catches a kind that another one's rule takes first."""
    found = dict(zip(written, read_results(list(written.values())), strict=True))
    assert {name: file.kind.name for name, file in found.items()} == KIND_OF
    assert {file.kind.name for file in found.values()} == {kind.name for kind in KINDS}
    for file in found.values():
        assert file.chapter().headlines and file.chapter().missing, file.kind.name


def test_measured_points_and_the_theory_behind_them(written: dict[str, Path]) -> None:
    """The curve is Theorem 3.8 with the rows' own alpha, c and cost of a width; the points are the rows."""
    rows = result_files.measured()["rows"]
    chart = lines(chapter(written["measure"]), "speedup-t0")
    points, curve = chart.series[0], chart.series[2]
    here = [r for r in rows if (r["draft"], r["temperature"], r["task"]) == ("auto", 0.0, "all")]
    fixed = [r for r in here if r["gamma"] != "auto"]
    marks = {mark.x: mark for mark in points.marks}
    for row in fixed:
        mark = marks[row["gamma"]]
        assert (mark.y, [mark.low, mark.high]) == (row["speedup"], list(row["speedup_interval"]))
    assert (points.form, curve.form, curve.colour) == ("points", "curve", 0)
    weights = [r["stats"]["examined"] for r in here]
    alpha = sum(w * r["stats"]["alpha"] for w, r in zip(weights, here, strict=True)) / sum(weights)
    run = theory.interpolated(result_files.WIDTHS)
    costs = theory.Costs(run, result_files.COSTS["auto"])
    assert [mark.y for mark in curve.marks] == pytest.approx([theory.speedup(alpha, g, costs) for g in range(9)])


def test_constant_shapes_have_the_papers_costs(tmp_path: Path) -> None:
    """Catches widths that are charged for where every run has the same shape."""
    record = result_files.measured()
    record["conditions"]["any_width"] = False
    curve = lines(of_record(record, tmp_path), "speedup-t0").series[2]
    charged = lines(of_record(result_files.measured(), tmp_path), "speedup-t0").series[2]
    assert curve.marks[0].y == 1.0 and curve.marks[1].y > charged.marks[1].y


def test_an_adapted_gamma_stands_at_its_mean(tmp_path: Path) -> None:
    record = result_files.measured()
    record["rows"] = [row for row in record["rows"] if row["gamma"] == "auto" and row["draft"] == "auto"]
    series = lines(of_record(record, tmp_path), "speedup-t0").series[0]
    assert [mark.x for mark in series.marks] == [4.0] and "γ auto at its mean" in series.label


def test_acceptance_by_depth_and_task(written: dict[str, Path]) -> None:
    """Catches depths counted from zero, shares of all guesses instead of those that were read, and lost tasks."""
    found = chapter(written["measure"])
    row = next(r for r in result_files.measured()["rows"] if (r["gamma"], r["task"]) == (5, "all"))
    depth = lines(found, "depth-t0").series[0]
    for number, (mark, (examined, kept)) in enumerate(zip(depth.marks, row["stats"]["depths"], strict=True), 1):
        assert (mark.x, mark.y, (mark.low, mark.high)) == (number, kept / examined, wilson(kept, examined))
    chart = bars(found, "acceptance-by-task-t0")
    assert [r.label for r in chart.rows] == [*result_files.TASKS, "all"] and len(chart.series) == 2
    lengths = bars(found, "run-lengths-t0")
    assert [r.label for r in lengths.rows[:2]] == ["1 token", "2 tokens"]
    for place in range(2):
        assert sum(r.bars[place].value for r in lengths.rows if r.bars[place] is not None) == pytest.approx(100)


def test_time_of_a_step_by_phase(written: dict[str, Path]) -> None:
    chart = bars(chapter(written["measure"]), "phases-t0")
    stats = result_files.measured()["rows"][4]["stats"]  # auto, gamma 1, all tasks
    assert chart.stacked and chart.rows[0].label == "auto, γ 1"
    values = [bar.value for bar in chart.rows[0].bars if bar is not None]
    assert values == pytest.approx([1000 * stats["seconds"][phase] / stats["runs"] for phase in PHASES])


def test_what_an_old_measurement_lacks_is_said(tmp_path: Path) -> None:
    """Files from before acceptance by depth was written are drawn without it, and say so."""
    record = result_files.measured()
    for row in record["rows"]:
        del row["stats"]["depths"], row["stats"]["emitted"]
    record |= {"interrupted": True}
    found = of_record(record, tmp_path)
    assert not {"depth-t0", "run-lengths-t0"} & charts(found).keys() and "speedup-t0" in charts(found)
    assert any("Acceptance by depth" in text for text in found.missing)
    assert any("interrupted after 24 of 24" in text for text in found.missing)


def test_a_gpu_has_no_phases(tmp_path: Path) -> None:
    """There the clock sees launches: a chart of them would mislead."""
    record = result_files.measured()
    record["conditions"]["cuda"] = "13.0"
    found = of_record(record, tmp_path)
    assert "phases-t0" not in charts(found) and any("launches" in text for text in found.missing)


def test_engines_fastest_first(written: dict[str, Path]) -> None:
    found = chapter(written["cpu"])
    peers = bars(found, "peers-t0")
    assert [row.label for row in peers.rows][:2] == ["outrider speculative", "outrider plain"]
    speeds = [row.bars[0].value for row in peers.rows if row.bars[0] is not None]
    assert speeds == sorted(speeds, reverse=True)
    over = {h.label: h for h in found.headlines}["Over the fastest other way"]
    assert over.detail.startswith("llamacpp plain") and over.value == "2.73×"
    assert bars(found, "by-task-t0").series == ("outrider speculative", "outrider plain", "llamacpp plain")
    assert {mark.x for mark in lines(found, "prefill-by-context").series[0].marks} == {200, 800, 4000}
    assert any("openvino plain: it failed: not installed" in text for text in found.missing)


def test_a_server_under_load(written: dict[str, Path]) -> None:
    found, points = chapter(written["serve"]), result_files.loads()["points"]
    chart = lines(found, "throughput")
    assert chart.log_x and [series.label for series in chart.series] == ["plain", "speculative"]
    assert [mark.y for mark in chart.series[1].marks] == [p["speculative"]["tokens_per_second"] for p in points]
    ratio = lines(found, "speculative-over-plain")
    assert ratio.reference == (1.0, "plain")
    assert [mark.low for mark in ratio.series[0].marks] == [p["speculative_over_plain"]["quartiles"][0] for p in points]
    one = chapter(written["load"])
    assert [row.label for row in bars(one, "latency").rows][-1] == "whole answer"
    assert any("--loads 1,2,4,8" in text for text in one.missing)


def test_the_h200_file(written: dict[str, Path]) -> None:
    """The file in docs/measured: its pair, curves, loads, peers, and what was not measured."""
    found, results = chapter(written["gpu"]), json.loads(written["gpu"].read_text("utf-8"))
    pair = results["pair_temperature_0"]
    chart = lines(found, "speedup")
    assert [(m.x, m.y) for m in chart.series[0].marks] == [(5, pair["first"]["speedup"]), (7, pair["speedup"])]
    assert chart.series[2].marks[7].y == pytest.approx(theory.speedup(pair["alpha"], 7, pair["c"]))
    assert [mark.y for mark in lines(found, "depth").series[0].marks] == pair["alpha_by_depth"]
    step = bars(found, "step").rows[1]
    drawn = [bar.value for bar in step.bars if bar is not None]
    assert drawn[0] == pytest.approx(7 * pair["steps"]["guess_ms"])
    assert sum(drawn[:2]) == pytest.approx(pair["steps"]["speculative_ms"])
    assert {"pair-load-temperature-0", "speculative-over-plain", "peers", "step-by-rows"} <= charts(found).keys()
    same = {row[0]: row for row in tables(found)[-1].rows}
    assert same["speculative against plain, 8 rows"] == ("speculative against plain, 8 rows", "20,000", "0")


def test_sections_of_a_gpu_that_failed(tmp_path: Path) -> None:
    record = {
        "machine": {"device": "Some GPU"}, "size": "8b", "identity": {"error": "no"}, "by_rows": {"skipped": "no time"},
    }  # fmt: skip
    found = of_record(record, tmp_path)
    assert not found.charts and {"identity: no", "by_rows: skipped: no time"} <= set(found.missing)
    assert any("--section pair" in text for text in found.missing)


def test_a_certificate(written: dict[str, Path], tmp_path: Path) -> None:
    found = chapter(written["verify"])
    assert [h.value for h in found.headlines] == ["passed", "0", "2 of 2", "1 of 1"]
    assert [mark.x for mark in lines(found, "tokens-per-run-greedy").series[0].marks] == [1, 4, 8]
    results = {row[0]: row[-1] for table in tables(found) for row in table.rows}
    assert (results["control"], results["rule"], results["other neighbours"]) == ("caught", "ok", "ok")
    broken = result_files.certificate() | {"verdict": "failed", "mismatched_tokens": 3}
    broken["greedy"][0] |= {"passed": False, "mismatches": 3}
    failed = of_record(broken, tmp_path)
    assert [h.value for h in failed.headlines][:2] == ["failed", "3"]
    assert any(row[-1] == "FAILED" for table in tables(failed) for row in table.rows)


def test_texts_add_up(written: dict[str, Path]) -> None:
    """Catches means of means, and a failed line that is lost."""
    found, records = chapter(written["batch"]), result_files.batch()[:-1]
    tokens, runs = (sum(r["stats"][key] for r in records) for key in ("tokens", "runs"))
    values = {h.label: h.value for h in found.headlines}
    assert (values["Tokens"], values["Failed"]) == (f"{tokens:,}", "1")
    assert values["Tokens per target run"] == f"{tokens / runs:.2f}"
    depth = lines(found, "depth").series[0].marks[0]
    examined, kept = (sum(r["stats"]["depths"][0][i] for r in records) for i in (0, 1))
    assert depth.y == kept / examined
    assert tables(found)[-1].rows[-1][-1] == "error: the prompt is empty"
    assert bars(found, "phases").value_label == "% of the time"
    assert bars(chapter(written["generate"]), "phases").value_label == "ms per step"


def test_a_trace_in_colours(tmp_path: Path) -> None:
    """Catches a rejected guess shown as text, guesses behind it as judged, and a text that runs past its end."""
    history = Trace("x", records=[
        Record(0, 1, (5, 6, 7), 1, 8, (1.0, 0.2, 0.1), 2),
        Record(0, 3, (5, 6), 2, 8, (1.0, 1.0), 3),
        Record(0, 6, (), 0, 8, (), 1),
        Record(0, 7, (5, 6), 2, 8, (1.0, 1.0), 1),
    ], runs=4)  # fmt: skip
    path = tmp_path / "trace.jsonl"
    history.save(path, lambda tokens: "".join("abcdefgh\nj"[token] for token in tokens))
    found = chapter(path)
    (trace,) = [b for s in found.sections for b in s.blocks if isinstance(b, ColouredTrace)]
    shown = [[(part.origin, part.text) for part in run] for run in trace.runs]
    assert shown == [
        [("accepted", "f"), ("rejected", "g"), ("unread", "h"), ("corrected", "⏎")],
        [("accepted", "f"), ("accepted", "g"), ("bonus", "⏎")],
        [("plain", "⏎")],
        [("accepted", "f"), ("unread", "g")],
    ]
    assert Trace.load(path) == history, "the texts are no part of the trace itself"
    history.save(path)
    assert any("numbers only" in text for text in chapter(path).missing)


def test_a_plan(written: dict[str, Path]) -> None:
    """Predictions with the cells that were run, in one colour."""
    one = lines(chapter(written["plan"]), "plan-1")
    assert [(series.label, series.form, series.colour) for series in one.series] == [
        ("auto, predicted", "line", 0), ("auto, measured", "points", 0),
    ]  # fmt: skip
    assert len(lines(chapter(written["plan"]), "plan-8").series) == 1
