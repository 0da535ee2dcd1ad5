"""Comparing engines: figures that follow from the timings, prompts, and what the machine is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import library
from outrider.bench.cpu_rows import EngineCell, EngineResults, rows
from outrider.bench.machine import Neighbours, cpu_name, read_bandwidth
from outrider.bench.prompts import CONVERSATIONS, read
from outrider.errors import BadOption
from outrider.models.hub.checkpoint import look
from outrider.runtime import timer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library.save_llama(tmp_path_factory.mktemp("cpu") / "target"))


# --- figures -----------------------------------------------------------------------------------------


def cell(
    seconds: float, first_seconds: float = 1.0, first_tokens: int = 1, last: int = 0, tokens: int = 5
) -> EngineCell:
    return EngineCell((*range(tokens - 1), last), seconds, first_tokens, first_seconds, prompt=10)


def found(results: EngineResults, floor: float | None = 8.0) -> dict[tuple[str, str], Any]:
    return {(row.task, row.way): row for row in rows(results, lambda way: floor)}


def test_the_prompts_time_counts_apart() -> None:
    """Four tokens in two seconds behind a first one that took one: 2 a second, 5/3 with the prompt."""
    results = EngineResults()
    results.add(0.0, "a", 0, "outrider plain", cell(3.0))
    row = found(results)["all", "outrider plain"]
    assert (row.tokens_per_second, row.whole_tokens_per_second, row.first_seconds) == (2.0, pytest.approx(5 / 3), 1.0)
    assert row.floor_share == 0.25 and row.interval == (None, None) and row.prompts == 1
    assert found(results, floor=None)["all", "outrider plain"].floor_share is None


def test_totals_over_totals_and_ratios() -> None:
    """Catches means of ratios, and ratios over prompts that only one of the two has decoded."""
    results = EngineResults()
    for number, seconds in enumerate((2.0, 5.0)):
        results.add(0.0, "a", number, "outrider plain", cell(seconds))
        results.add(0.0, "a", number, "outrider speculative", cell(1.5))
        results.add(0.0, "a", number, "vllm plain", cell(1 + 2 * (seconds - 1)))
    results.add(0.0, "b", 2, "outrider plain", cell(101.0))
    table = found(results)
    assert table["a", "outrider plain"].tokens_per_second == pytest.approx(8 / 5)
    assert table["all", "outrider speculative"].over_plain == pytest.approx((8 / 1) / (8 / 5))  # not with prompt 2
    assert table["a", "vllm plain"].ours_over == pytest.approx((8 / 1) / (8 / 10))
    assert table["a", "vllm plain"].our_plain_over == pytest.approx(2.0) and table["a", "vllm plain"].over_plain == 1
    assert table["all", "outrider plain"].prompts == 3 and ("b", "vllm plain") not in table
    low, high = table["a", "outrider plain"].interval
    assert low <= 8 / 5 <= high


def test_the_middle_repeat_counts() -> None:
    results = EngineResults()
    for seconds in (9.0, 2.0, 3.0):
        results.add(0.0, "a", 0, "outrider plain", cell(seconds))
    assert found(results)["a", "outrider plain"].tokens_per_second == 2.0
    assert len(results.samples()) == 3


def test_texts_are_compared_with_the_same_engines() -> None:
    """At temperature 0 only, and each engine with itself; the agreement with ours is counted in tokens."""
    results = EngineResults()
    for temperature in (0.0, 1.0):
        for way, last in (("outrider plain", 1), ("vllm plain", 2), ("vllm lookup", 2), ("outrider speculative", 3)):
            results.add(temperature, "a", 0, way, cell(2.0, last=last))
    table = {(row.temperature, row.task, row.way): row for row in rows(results, lambda way: None)}
    same = {way: table[0.0, "a", way].same_as_plain for way in ("vllm lookup", "outrider speculative")}
    assert same == {"vllm lookup": 1, "outrider speculative": 0}
    assert table[0.0, "a", "vllm plain"].agreement == 4 and table[0.0, "a", "outrider plain"].agreement == 5
    assert table[1.0, "a", "vllm lookup"].same_as_plain is None and table[1.0, "a", "vllm lookup"].agreement is None


# --- prompts and the machine -------------------------------------------------------------------------


def test_six_tasks_of_spec_bench(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    lines = [{"category": c, "turns": [f"{c} {i}"]} for c in (*CONVERSATIONS, "rag", "qa") for i in range(3)]
    file.write_text("\n".join(map(json.dumps, lines)))
    tasks = read(file, per_task=4, spec_bench=True)
    assert list(tasks) == ["multi-turn", "rag", "qa"] and len({p.split()[0] for p in tasks["multi-turn"]}) == 4
    assert set(read(file)) == {*CONVERSATIONS, "rag", "qa"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"prompt": 5}, "prompt must be a text, got 5; "),
        ({"prompt": None}, "prompt must be a text, got null; "),
        ({"turns": [["a"]]}, r'prompt must be a text, got \["a"\]; '),
        ({"prompt": "a", "task": 5}, "task must be a text, got 5; "),
        ({"prompt": "a", "category": ["b"]}, r'task must be a text, got \["b"\]; '),
        (["prompt"], "needs a JSON object with a prompt or turns"),
    ],
    ids=str,
)
def test_prompts_that_are_no_texts(line: Any, says: str, tmp_path: Path) -> None:
    """The prompt 5 was measured as the text "5", null as "None", and a list as Python writes it."""
    file = tmp_path / "prompts.jsonl"
    good = {"prompt": "a", "task": None, "category": "b"}
    file.write_text(f"{json.dumps(good)}\n{json.dumps(line)}\n", encoding="utf-8")
    with pytest.raises(BadOption, match=rf"prompts\.jsonl, line 2: {says}"):
        read(file)
    file.write_text(f'{json.dumps(good)}\n{{"prompt": "c"}}\n', encoding="utf-8")
    assert read(file) == {"b": ("a",), "prompts": ("c",)}


def test_what_a_run_reads(folder: str) -> None:
    """The input table of this model is no part of a run; the output layer of the same size is."""
    checkpoint = look(folder)
    assert checkpoint.numbers() - checkpoint.numbers_read() == library.ROWS * 32
    assert checkpoint.dtype == "float32" and checkpoint.encode("the") == checkpoint.tokenizer.encode("the")


def test_the_machine_has_a_name_and_a_bus() -> None:
    speed = read_bandwidth(1, size=2**20, repeats=3)
    assert cpu_name() and 1e6 < speed["min"] <= speed["median"] <= speed["max"]


def test_neighbours_are_not_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches own work counted as somebody else's: what this process burns is taken off again."""
    if not Path("/proc/stat").is_file():
        pytest.skip("the system does not tell")
    monkeypatch.setattr(Path, "read_text", lambda *a, **k: f"cpu  {int(100 * clock[0])} 0 0 999 0\n")
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    clock, own = [10.0], [4.0]
    with timer.using(lambda: clock[0]):
        watch = Neighbours(lambda: own[0])
        clock[0], own[0] = 20.0, 13.0  # one core was busy for ten seconds, nine of them ours
        assert watch.cores() == pytest.approx(0.1)
