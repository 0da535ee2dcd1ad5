"""Measuring drafts: figures that follow from the runs, fair turns, and cards whose command gives the figures again."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import library
import outrider
from outrider.bench import card
from outrider.bench import measure as bench_measure
from outrider.bench.best_single import AutoRow
from outrider.bench.cells import NARROW, PLAIN, Cell
from outrider.bench.measure import MeasureSettings, Way, bootstrap, measure, timed_text, total_ratio
from outrider.bench.prompts import SAMPLE, SOURCES, read
from outrider.cli import measure_tables
from outrider.cli.main import app
from outrider.drafters import Cascade, Copying, ModelDrafter
from outrider.errors import BadOption
from outrider.trace import PHASES, Trace

TASKS = {"first": ["the end", "then and there"], "second": ["a b c a b c a b"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library.save_llama(tmp_path_factory.mktemp("measure") / "target"))


def test_drafts_and_temperatures_in_one_run(folder: str) -> None:
    """Catches rows that mix up drafts, tasks or temperatures: the target as its own draft is always accepted."""
    llm = outrider.load(folder, draft="uniform", dtype="float32", slots=1)
    drafts = {"uniform": llm, "itself": llm.with_draft(ModelDrafter(llm.target.model))}
    settings = MeasureSettings((0.0, 1.0), 2, {"max_new_tokens": 8, "seed": 1, "gamma": 2})
    rows = measure(drafts, TASKS, settings).rows
    keys = [(r.temperature, r.draft, r.task) for r in rows]
    assert keys == [(t, d, task) for t in (0.0, 1.0) for d in drafts for task in ("first", "second", "all")]
    found = dict(zip(keys, rows, strict=True))
    for t in (0.0, 1.0):
        itself, uniform = found[t, "itself", "all"], found[t, "uniform", "all"]
        assert itself.stats.alpha == pytest.approx(1, abs=1e-4) and uniform.stats.alpha < 0.6
        assert itself.alpha_interval == pytest.approx((1, 1), abs=1e-4)
        assert itself.prompts == 3 and itself.repeats == 2 and itself.cost > 0
        assert uniform.alpha_interval[0] <= uniform.stats.alpha <= uniform.alpha_interval[1]
    zero = found[0.0, "itself", "all"]
    assert zero.identical == 3 and zero.stats.tokens == sum(found[0.0, "itself", t].stats.tokens for t in TASKS)
    assert math.isnan(found[0.0, "itself", "second"].speedup_interval[0])  # one prompt says nothing about others


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU; on a CPU a replay is calling the step again."""
    monkeypatch.setattr("outrider.llm._graphs", lambda asked, device: True)


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("draft", ["itself", "copy", "cascade"])
def test_the_cost_of_a_guess_is_known_under_replay(folder: str, draft: str) -> None:
    """A replayed step is one launch whose parts no trace can tell apart: c was 0 there."""
    llm = outrider.load(folder, draft="copy", dtype="float32", slots=1)
    drafts: dict[str, Any] = {
        "itself": ModelDrafter(llm.target.model),
        "copy": "copy",
        "cascade": Cascade(Copying(), ModelDrafter(llm.target.model)),  # cannot be recorded, and runs eagerly
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "steps cannot be replayed")
        rows = measure(
            {draft: llm.with_draft(drafts[draft])},
            TASKS,
            MeasureSettings((0.0, 1.0), 1, {"max_new_tokens": 4, "gamma": 2}),
        ).rows
    assert all(0 < row.cost < math.inf for row in rows)


@pytest.mark.usefixtures("replaying")
def test_the_cost_of_a_guess_is_known_for_a_replayed_translator(tmp_path: Path) -> None:
    folder = library.save_t5(tmp_path)
    llm = outrider.load(str(folder), draft="copy", dtype="float32", slots=1)
    engine = llm.with_draft(ModelDrafter(llm.target.model))
    settings = MeasureSettings((0.0,), 1, {"max_new_tokens": 4, "gamma": 2})
    (row, _) = measure({"itself": engine}, {"one": ["the end"]}, settings).rows
    assert 0 < row.cost < math.inf


@pytest.mark.usefixtures("replaying")
def test_every_text_is_run_before_it_is_timed_under_replay(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph is captured when a step is first run: an inflated pair was measured at 1.2 instead of 2.4 times plain."""
    asked: list[Any] = []
    generate = outrider.LLM.generate

    def counted(llm: outrider.LLM, prompt: Any, **options: Any) -> Any:
        asked.append((prompt, options["max_new_tokens"], options.get("gamma")))
        return generate(llm, prompt, **options)

    monkeypatch.setattr(outrider.LLM, "generate", counted)
    engine = outrider.load(folder, draft="copy", dtype="float32", slots=1)
    measure({"copy": engine}, {"one": ["the end", "a"]}, MeasureSettings((0.0,), 1, {"max_new_tokens": 5, "gamma": 2}))
    timed = [one for one in asked if one[1] == 5]
    before, under = timed[: len(timed) // 2], timed[len(timed) // 2 :]
    assert before and sorted(before, key=str) == sorted(under, key=str)


def test_a_cell_counts_the_median_of_its_repeats() -> None:
    """Catches one slow repeat that decides a figure, and repeats counted as more tokens."""

    def output(seconds: float) -> Any:
        trace = Trace(seconds=dict.fromkeys((*PHASES, "prefill"), seconds / len(PHASES)))
        return SimpleNamespace(tokens=[1, 2, 3], trace=trace)

    cell = Cell((output(1.0), output(9.0), output(2.0)))
    assert cell.work == (3, pytest.approx(2.0))


def test_engines_take_turns() -> None:
    """Catches an order in which one way of decoding always runs on a machine another one has warmed up."""
    order: list[str] = []
    engines: Any = {
        name: SimpleNamespace(generate=lambda prompt, name=name, **options: order.append(name)) for name in "abc"
    }
    ways = {name: Way(engine) for name, engine in engines.items()}
    for turn in range(3):
        timed_text(ways, "x", {}, 1, turn)
    assert order == list("abcbcacab")
    order.clear()
    timed_text(ways, "x", {}, 3, 0)
    assert order == list("abcbcacab")


def test_bootstrap_is_over_prompts_and_of_totals() -> None:
    """Catches a mean of ratios, and an interval that does not widen with the differences between prompts."""
    assert total_ratio([(1, 1), (90, 9)]) == pytest.approx(9.1)
    alike, unlike = [(2.0, 1.0)] * 10, [(1.0, 1.0)] * 5 + [(3.0, 1.0)] * 5
    assert bootstrap(alike) == (2.0, 2.0)
    low, high = bootstrap(unlike)
    assert 1.2 < low < 1.7 and 2.3 < high < 2.8  # sd of the mean of ten is 0.316: 2 -+ 0.62
    assert bootstrap(unlike, unlike) == (1.0, 1.0)  # the same prompts are drawn above and below
    assert all(map(math.isnan, bootstrap([(1.0, 1.0)])))


def test_a_card_is_made_again_by_its_command(folder: str, tmp_path: Path) -> None:
    """Catches a card with figures that the command in it does not give."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"category": c, "turns": [p, "and then"]} for c, texts in TASKS.items() for p in texts]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    page = tmp_path / "card.md"
    page.write_text("# Mine\n\nWords.\n", encoding="utf-8")
    given = ["measure", folder, "-d", "uniform", "-d", "copy", "--temperature", "0", "--temperature", "1", "-n", "6"]
    given += ["--prompts", str(prompts), "--dtype", "float32", "--gamma", "3", "--card", str(page)]
    for _ in range(2):
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Mine\n\nWords.\n") and text.count("## Measured") == 1
    command = next(line for line in text.splitlines() if line.startswith("outrider measure"))
    again = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"])
    report = json.loads(again.stdout)
    assert report["command"] == command and report["conditions"]["dtype"] == "float32"
    assert len(report["rows"]) == 12

    def kept(markdown: str) -> list[list[str]]:
        """Draft, temperature, task, prompts, n, alpha, tokens per run: what does not depend on the clock."""
        return [line.split(" | ")[:7] for line in markdown.splitlines() if line.startswith("| ")]

    assert kept(card.section(report)) == kept(text)


def test_refusals(folder: str, tmp_path: Path) -> None:
    for words, says in (
        (["--draft", "copy", "--draft", "copy"], "each --draft can be named once"),
        (["--temperature", "1", "--temperature", "1"], "temperatures: values must differ"),
        (["--repeats", "0"], "repeats must be at least 1"),
        (["--temperature", "-1"], "temperature"),
        (["--card", str(tmp_path / "no" / "card.md")], "make it first"),
    ):
        error = CliRunner().invoke(app, ["measure", folder, *words]).exception
        assert isinstance(error, BadOption) and says in str(error)
    half = tmp_path / "half.md"
    half.write_text(card.BEGIN, encoding="utf-8")
    with pytest.raises(BadOption, match="one of the two marks"):
        card.update(half, "new")


def test_prompts_for_encoders_are_sources(tmp_path: Path) -> None:
    """Catches a translator that is asked to write a poem."""
    assert read(None, sources=True) == SOURCES and read(None) == SAMPLE
    target = library.save_t5(tmp_path / "t5")
    result = CliRunner().invoke(app, ["measure", str(target), "--per-task", "1", "-n", "4", "--json"])
    assert {r["task"] for r in json.loads(result.stdout)["rows"]} == {*SOURCES, "all"}


def test_a_draft_cannot_take_the_name_of_a_baseline(folder: str) -> None:
    """Catches a directory called plain that replaces plain decoding in the comparison."""
    llm = outrider.load(folder, draft="copy", dtype="float32", slots=1)
    for name in (PLAIN, NARROW):
        with pytest.raises(BadOption, match="compared with"):
            measure({name: llm}, TASKS, MeasureSettings())


# --- what is shown -----------------------------------------------------------------------------------


def _row(task: str = "mathematical_reasoning", gamma: int | str = 4) -> dict[str, Any]:
    """A row with figures as long as they get."""
    stats = {"examined": 123456, "alpha": 0.654, "tokens_per_run": 12.34, "drafter": "copy"}
    return {
        "draft": "copy", "gamma": gamma, "temperature": 1.0, "task": task, "prompts": 480, "repeats": 1, "stats": stats,
        "alpha_interval": [0.61, 0.69], "plain_tokens_per_second": 1234.5, "narrow_tokens_per_second": 1.0,
        "tokens_per_second": 12345.6, "speedup": 12.35, "speedup_interval": [11.1, 13.6], "speedup_narrow": 1.2,
        "oracle_tokens": 12.89, "cost": 0.123, "identical": 480,
    }  # fmt: skip


def test_tables_fit_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns, and so in every pipe, c was "0.…" and numbers were cut in the middle."""
    page = io.StringIO()
    for narrow in (80, 40):  # in a narrower terminal lines wrap, but nothing is left out
        console = Console(file=page, width=narrow, soft_wrap=True, highlight=False)
        monkeypatch.setattr(measure_tables, "answers", console)
        options = {"coupling": "maximal", "lenience": 1}
        report = {"target": "smollm2-135m", "drafters": {"copy": "copy"}, "options": options, "rows": [_row()]}
        report["auto_over_best"] = [
            AutoRow(1.0, "mathematical_reasoning", "smollm2-135m", "auto", 4, 0.98765, (0.5, 1.25)).to_json()
        ]
        measure_tables.show(report)
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in page.getvalue()
    figures = "0.123", "12345.6", "1234.5", "0.65 (0.61-0.69)", "12.35 (11.10-13.60)", "123456", "480/480"
    for figure in (*figures, "0.99 (0.50-1.25)"):
        assert sum(f" {figure}" in line for line in lines) == 2, figure
    assert sum("same text" in line for line in lines) == 4  # in two headings and in two explanations


def test_several_gammas_are_compared(folder: str, tmp_path: Path) -> None:
    """--gamma 2 --gamma 4 measured 4 alone, and said nothing of it. CSV and cards tell them apart, too."""
    page, prompts = tmp_path / "card.md", tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"task": "one", "prompt": p}) for p in ("a b a b", "the end")))
    words = ["measure", folder, "-d", "copy", "--gamma", "1", "--gamma", "3", "-n", "8", "--prompts", str(prompts)]
    words += ["--dtype", "float32", "--card", str(page)]
    result = CliRunner().invoke(app, [*words, "--csv"])
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["gamma"] for row in rows if row["task"] == "all"] == ["1", "3"]
    assert {row["draft"] for row in rows} == {"copy"} and all(float(row["speedup"]) > 0 for row in rows)
    assert "alpha_interval_low" in rows[0] and "stats_alpha" in rows[0]
    text = page.read_text(encoding="utf-8")
    assert "--gamma 1 --gamma 3" in text and "| gamma | t |" in text
    for wrong, says in ((["--gamma", "2", "--gamma", "2"], "differ"), (["--gamma", "9"], "--width 10")):
        error = CliRunner().invoke(app, ["measure", folder, *wrong]).exception
        assert isinstance(error, BadOption) and says in str(error)
    error = CliRunner().invoke(app, [*words, "--csv", "--json"]).exception
    assert isinstance(error, BadOption) and "exclude each other" in str(error)


def test_ctrl_c_shows_what_was_measured(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C threw away every prompt that had been measured."""
    real, turns = bench_measure.timed_text, iter(range(1, 100))

    def decode(*given: Any) -> Any:
        if next(turns) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(bench_measure, "timed_text", decode)
    words = ["measure", folder, "-d", "copy", "-n", "4", "--dtype", "float32", "--temperature", "1", "--json"]
    result = CliRunner().invoke(app, words)
    report = json.loads(result.stdout)
    assert result.exit_code == 130 and report["interrupted"] and report["prompts_done"] == 2
    assert report["rows"][-1]["task"] == "all" and report["rows"][-1]["prompts"] == 2
    assert "2 of" in result.stderr and "were finished" in result.stderr
