"""``outrider bench gpu`` where there is no GPU: the same code on tiny models, its table, its file and its errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import library
from outrider.bench import gpu_run, pair
from outrider.bench.gpu import StepSetting
from outrider.bench.gpu_run import GpuPlan, run
from outrider.bench.gpu_table import GpuLine, failed, lines
from outrider.bench.inflate import Larger, inflate
from outrider.bench.timing import Report
from outrider.cli.main import app
from outrider.core import host_sync
from outrider.core.protocols import Shape
from outrider.drafters.head import Head, HeadConfig, HeadDrafter, prepared
from outrider.drafters.head.choice import BackendChoice
from outrider.errors import BadOption, DeviceError, ModelNotFound
from outrider.models.hub.loading import load
from outrider.models.transformers.model import HuggingFaceModel
from outrider.trace import Record, Trace

TINY = ["bench", "gpu", "--size", "tiny", "--device", "cpu"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """One run of the command: what it printed and what it wrote. Steps are those of a GPU, which can be captured."""
    out = tmp_path_factory.mktemp("bench") / "gpu.json"
    sections = [f"--section={name}" for name in ("latency", "identity", "curves", "pair")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sync, "on_cpu", False)
        result = CliRunner().invoke(app, [*TINY, *sections, "--out", str(out)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads(out.read_text(encoding="utf-8"))


def test_every_section_is_measured(measured: tuple[str, dict[str, Any]]) -> None:
    _, found = measured
    assert not failed(found)
    assert found["graph"]["speculative"]["graphs"], "its steps were recorded"
    assert [p["gamma"] for p in found["by_gamma"]] == [1, 2, 4]
    for name in (
        "roofline",
        "transformers_plain",
        "transformers_assisted",
        "eager",
        "prefill",
        "by_rows",
        "by_context",
    ):
        assert name in found


def test_tokens_are_the_same(measured: tuple[str, dict[str, Any]]) -> None:
    _, found = measured
    assert found["noise"]["different"] == 0
    for name in ("replayed_is_eager", "identity", "identity_one_row"):
        for part in found[name].values():
            assert part["mismatches"] == 0 and part["tokens"] > 0
    assert found["identity"]["temperature 1"]["speculative_steps"] < found["identity"]["temperature 1"]["plain_steps"]


def test_a_model_inflated_drafted_for_by_itself_keeps_every_guess(measured: tuple[str, dict[str, Any]]) -> None:
    """Catches an inflation that changes the function, and an alpha that is not measured."""
    _, found = measured
    for temperature in (0, 1):
        part = found[f"pair_temperature_{temperature}"]
        assert part["alpha"] == pytest.approx(1, abs=1e-3) and part["alpha_counted"] > 0.99
        assert part["c"] > 0 and part["speedup"] > 0
        assert part["realised_over_predicted"] == pytest.approx(part["speedup"] / part["predicted_speedup"])
        assert part["realised_over_predicted"] == pytest.approx(math.prod(part["of_which"].values()))
    assert "inflated to" in found["inflated_pair"]["about"]


def test_loads_are_captured_before_they_are_timed(measured: tuple[str, dict[str, Any]]) -> None:
    """Numbers of guesses that had not been asked for before were captured in timed turns, which took twice as long."""
    _, found = measured
    for temperature in (0, 1):
        for point in found[f"pair_load_temperature_{temperature}"]:
            assert point["speculative"]["captures_while_timed"] == point["plain"]["captures_while_timed"] == 0
            assert len(point["speculative"]["seconds"]) == len(point["plain"]["seconds"]) > 0


def test_the_table_names_what_was_measured(measured: tuple[str, dict[str, Any]]) -> None:
    shown, _ = measured
    for words in ("transformers, plain generate", "roofline", "speculative against plain", "Theorem 3.8", "0 of"):
        assert words in shown
    assert "at most 6" not in shown, "bars are for the large models"


def test_bars_are_held_for_the_large_models() -> None:
    """Numbers on both sides of every bar: a table that always says yes would be caught."""

    def step(ms: float) -> dict[str, Any]:
        return {"queued": {"median": ms}, "exposed_host_ms": 0.05, "graphs": True}

    results = {
        "size": "8b",
        "transformers_plain": {"median": 21.8},
        "transformers_assisted": {"median": 120.0},
        "graph_fused": {"plain": step(4.9), "speculative": step(10.9), "width_ratio": 1.10},
    }
    met = {line.what: line.met for line in lines(results)}
    assert met["plain decoding, ms a token"] is True
    assert met["target step at full width over width 1"] is False
    faster = [line for line in lines(results) if "times faster" in line.what]
    assert [(line.measured, line.met) for line in faster] == [("4.45", False), ("11.01", True)]


@pytest.mark.parametrize(
    ("alpha", "speedup", "met", "bar"),
    [(0.78, 3.5, True, "at least 3.4"), (0.78, 2.8, False, "at least 3.4"), (0.7, 2.8, None, "where alpha is 0.75")],
)
def test_the_papers_speed_up_is_a_bar_for_drafts_as_good(alpha: float, speedup: float, met: bool, bar: str) -> None:
    shares = {"tokens_a_run": 1.0, "ends_of_texts": 1.0, "time_of_a_run": 0.95}
    part = {
        "alpha": alpha, "c": 0.04, "gamma": 5, "speedup": speedup, "predicted_speedup": 3.0,
        "realised_over_predicted": 0.96, "of_which": shares, "exposed_host_ms": 0.1,
    }  # fmt: skip
    (line,) = [line for line in lines({"size": "8b", "pair_temperature_0": part}) if line.what == "  speed-up"]
    assert line.met is met and bar in line.bar


def test_without_a_gpu_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="--device cpu --size tiny"):
        run(GpuPlan())


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"sections": ("speed",)}, "known: latency"),
        ({"size": "9b"}, "size must be"),
        ({"tokens": 0}, "tokens must be"),
        ({"size": "tiny", "prompts": Path("asked.jsonl")}, "size tiny makes one of its own"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(BadOption, match=match):
        GpuPlan(**settings)


def test_prompts_that_are_not_there_are_named_before_anything_is_measured() -> None:
    with pytest.raises(ModelNotFound, match=r"nowhere.jsonl does not exist"):
        GpuPlan(prompts=Path("nowhere.jsonl"))


def test_the_trained_pair_is_asked_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.save_llama(tmp_path)
    small = load(str(tmp_path), "cpu", "float32").model
    size, own = small.hidden_size, small.model.config
    assert size is not None
    head = HeadDrafter(Head(HeadConfig("feature", size, 64, 1)), torch.arange(small.vocab_size))
    (tmp_path / "draft").mkdir()
    head.save(tmp_path / "draft")
    larger = Larger(2 * size, 2 * own.intermediate_size, own.num_hidden_layers + 2, 8, 4)
    monkeypatch.setattr(pair, "EIGHT_BILLION", larger)
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"prompt": "hello", "task": "greeting"}\n{"prompt": "the hello the", "task": "more"}\n')
    made = pair.trained_pair(str(tmp_path), tmp_path / "draft", torch.device("cpu"), "float32", asked)
    assert made.tasks == ("greeting", "more") and len(made.prompts[0]) < len(made.prompts[1])
    assert pair.trained_pair(str(tmp_path), tmp_path / "draft", torch.device("cpu"), "float32").tasks[0] == "chat"


def test_alpha_by_task() -> None:
    """A guess of rows 0 and 2, which are of one task, was kept every time; of row 1 never."""
    kept = [(0, 1), (1, 0), (2, 1), (0, 1)]
    records = [Record(row, 9, (5,), n, token=1, overlap=(float(n),), emitted=n + 1) for row, n in kept]
    assert pair.by_task(Trace(records=records), ("a", "b", "a")) == {"a": 1.0, "b": 0.0}


def test_a_section_that_fails_is_named_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*ignored: object) -> None:
        raise torch.cuda.OutOfMemoryError("tried to allocate 2 GiB")

    monkeypatch.setattr(gpu_run.identity, "compare", full)
    result = CliRunner().invoke(app, [*TINY, "--section=identity", f"--out={tmp_path / 'x.json'}"])
    assert result.exit_code == 1
    found = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert "no GPU memory left" in found["identity"]["error"] and "--size tiny" in found["identity"]["error"]
    assert found["replayed_is_eager"]["temperature 0"]["mismatches"] == 0


def test_points_stay_whatever_follows(tmp_path: Path) -> None:
    """A GPU that is taken away, or memory that ends, must not cost what was measured before."""

    def points(count: int) -> Iterator[dict[str, int]]:
        for x in range(count):
            yield {"x": x}
            found = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
            assert found["curve"][-1] == {"x": x}, "written when it came"
        raise torch.cuda.OutOfMemoryError("tried to allocate 2 GiB")

    report = Report(tmp_path / "x.json")
    report.series("curve", points(3))
    assert report.results["curve"] == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert failed(report.results) == ["curve after 3 points"]
    late = Report(None)
    late.series("curve", (setattr(late, "budget", -1.0) or {"x": x} for x in range(9)))  # type: ignore[func-returns-value]
    assert late.results["curve"] == [{"x": 0}] and "skipped" in late.results["curve after 1 points"]


def test_a_budget_skips_what_is_too_late() -> None:
    report = Report(None, budget=-1.0)
    report.section("late", lambda: {"ran": True})
    assert "skipped" in report.results["late"]
    assert lines(report.results) == [GpuLine("late", f"skipped: {report.results['late']['skipped']}")]


@pytest.mark.parametrize("graphs", [False, True])
def test_a_head_beside_an_inflated_target_guesses_as_before(
    tmp_path: Path, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head reads the first columns of states and tables: its guesses are those it makes for the small model."""
    monkeypatch.setattr(prepared, "choose", lambda *facts: BackendChoice("torch", "as on a GPU: it can be captured"))
    monkeypatch.setattr(host_sync, "on_cpu", not graphs)
    library.save_llama(tmp_path)
    small = load(str(tmp_path), "cpu", "float32").model
    size = small.hidden_size
    assert size is not None
    config = HeadConfig("feature", size, 64, 1, layers=(1, -1), heads=(4, 2))
    head = HeadDrafter(Head(config), torch.arange(small.vocab_size), floor=0.0)
    own = small.model.config
    larger = Larger(2 * size, 2 * own.intermediate_size, own.num_hidden_layers + 2, 8, 4)
    large = HuggingFaceModel(inflate(small.model, larger))
    texts = []
    for target, drafter in ((small, head), (large, pair.Narrowed(head))):
        made = pair.Pair(target, drafter, [(5, 6, 7, 8), (9, 10)], "")
        setting = StepSetting(target, target, gamma=3, width=5)
        rule, pool = pair.Rule(pair.choose("maximal", True), pair.Sampling()), pair.SessionPool(graphs)
        traced = pair.decoded(made, drafter, rule, setting, pool, 20)
        assert all(runner.captures == 1 for runner in pool.idle) and len(pool.idle) == graphs
        texts.append([(r.drafted, r.token) for r in traced.trace.records])
    assert texts[0] == texts[1] and texts[0]
    with pytest.raises(BadOption, match="hidden states of size"):
        head.start(1, Shape(64, 5), large.start(1, Shape(64, 5)))
