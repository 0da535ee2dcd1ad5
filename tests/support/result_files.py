"""Small result files of every kind, from the product's own records: a field that a writer gains or loses shows here."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.bench.cpu_contexts import context_rows
from outrider.bench.cpu_rows import EngineCell, EngineResults, rows
from outrider.bench.measure import MeasuredRow
from outrider.bench.plan.check import CheckedCell
from outrider.bench.plan.forecast import PredictedCell
from outrider.bench.plan.plan_file import KEYS
from outrider.bench.plan.plan_file import VERSION as PLAN_VERSION
from outrider.bench.serving.client import Answer
from outrider.bench.serving.load import Load, LoadRun, figures
from outrider.bench.serving.table import LoadTable, TablePlan
from outrider.certificate.distribution import DistributionResult
from outrider.certificate.identity import IdentityResult
from outrider.certificate.invariance import InvarianceResult
from outrider.certificate.run import Certificate
from outrider.output import Output
from outrider.paper import formulas
from outrider.paper.lab import Amount, Lab
from outrider.paper.results import PaperResults
from outrider.paper.run import run
from outrider.paper.table import Experiment, Found, PaperRow, Unit
from outrider.paper.traces import LETTERS
from outrider.report.charts import ColouredTrace, TimeLine, TimeLines, TimePart, TracePart
from outrider.theory import Costs, interpolated, speedup
from outrider.trace import Ending, Record, Trace, strict_json, summarise

GPU = Path(__file__).parents[2] / "docs" / "measured" / "h200.json"
SENTENCE = "The quick brown fox jumps over a lazy dog and then it sleeps under an old tree until dawn"
WORDS = [*SENTENCE.split(), ".\n"]
TASKS = ("chat", "maths", "translation", "summary")
ALPHAS = {"auto": 0.78, "copy": 0.45}
COSTS = {"auto": 0.06, "copy": 0.002}
WIDTHS = {1: 1.0, 2: 1.06, 4: 1.15, 9: 1.4}


def trace(runs: int = 24, alpha: float = 0.75, gamma: int = 5, row: int = 0, seed: int = 0) -> Trace:
    """A history by dice."""
    chance, found = random.Random(seed), Trace("a drafter", engine="numba, bfloat16 weights", dtype="float32")
    position = 10
    for _ in range(runs):
        accepted = next((n for n in range(gamma) if chance.random() > alpha), gamma)
        drafted = tuple(chance.randrange(len(WORDS) - 1) for _ in range(gamma))
        overlap = tuple(min(1.0, alpha + chance.uniform(-0.1, 0.1)) for _ in drafted)
        found.records.append(Record(row, position, drafted, accepted, len(WORDS) - 2, overlap, accepted + 1))
        position += accepted + 1
    found.runs = runs
    parts = {"draft": 0.01 * gamma * alpha, "target": 0.12, "accept": 0.008, "host": 0.004, "prefill": 0.05}
    found.seconds = {phase: seconds * runs / 24 for phase, seconds in parts.items()}
    found.endings = [Ending(row, "length")]
    return found


def show(tokens: list[int]) -> str:
    return "".join(f" {WORDS[token]}" for token in tokens)


def measured() -> dict[str, Any]:
    """What ``outrider measure --out`` writes."""
    found = []
    for t in (0.0, 1.0):
        for draft, alpha in ALPHAS.items():
            for gamma in (1, 3, 5, "auto"):
                for place, task in enumerate((*TASKS, "all")):
                    here = min(0.97, alpha - 0.12 * t + 0.04 * (place - 2))
                    found.append(_row(draft, gamma, t, task, here, 3 if task != "all" else 12))
    return {
        "target": "a-model", "drafters": {name: f"{name} drafter" for name in ALPHAS},
        "options": {"coupling": "maximal", "lenience": 1.0, "seed": 0},
        "conditions": {"device": "Some CPU", "any_width": True, "width_costs": WIDTHS, "torch": "2.11", "slots": 1},
        "command": "outrider measure a-model --draft auto --draft copy", "rows": [row.to_json() for row in found],
        "prompts_done": 24, "prompts_wanted": 24, "interrupted": False,
    }  # fmt: skip


def _row(draft: str, gamma: Any, t: float, task: str, alpha: float, prompts: int) -> MeasuredRow:
    guesses = gamma if isinstance(gamma, int) else 4
    stats = summarise(trace(20 * prompts, alpha, guesses, seed=prompts))
    run = interpolated(WIDTHS)
    gain = 0.97 * speedup(alpha, guesses, Costs(run, COSTS[draft] * run(guesses + 1)))
    return MeasuredRow(
        draft, gamma, t, task, prompts, 1, stats, (alpha - 0.03, alpha + 0.03), 40.0, 42.0, 40 * gain, gain,
        (gain - 0.12, gain + 0.1), gain, (gain - 0.2, gain + 0.2), gain / 1.05, (gain / 1.1, gain), COSTS[draft],
        1 / (1 - alpha), prompts,
    )  # fmt: skip


def engines() -> dict[str, Any]:
    """What ``outrider bench cpu --out`` writes."""
    speeds = {
        "outrider speculative": 120.0, "outrider plain": 48.0, "transformers plain": 14.0, "transformers lookup": 17.0,
        "vllm plain": 31.0, "llamacpp plain": 44.0,
    }  # fmt: skip
    results, contexts = EngineResults(), EngineResults()
    for way, speed in speeds.items():
        for number in range(8):
            seconds = 63 / (speed * (1 + 0.06 * math.sin(number)))
            cell = EngineCell(tuple(range(64)), seconds + 0.2, 1, 0.2, 40)
            results.add(0.0, TASKS[number % 4], number, way, cell)
        for length in (200, 800, 4000):
            cell = EngineCell(
                tuple(range(64)), 63 / speed * (1 + length / 8000) + length / 900, 1, length / 900, length
            )
            contexts.add(0.0, "context", length, way, cell)
    about = {"engine": "x", "version": "1.0", "dtype": "bfloat16", "note": "", "same_python": True, "bytes_each": 2.0}
    return {
        "target": "a-model", "command": "outrider bench cpu a-model", "cpu": "Some CPU", "threads": 2, "prompts": 8,
        "tokens": 64, "repeats": 1, "weights": 134_000_000, "left_out": 0, "contexts_left_out": [],
        "engines": dict.fromkeys(speeds, about), "failed": {"openvino plain": "not installed"}, "interrupted": False,
        "bytes_per_second": {"median": 2.1e10}, "other_cores": 0.02,
        "rows": [asdict(row) for row in rows(results, lambda way: 70.0)],
        "contexts": [asdict(row) for row in context_rows(contexts)], "samples": results.samples(),
    }  # fmt: skip


def _answers(load: int, speed: float, count: int = 12) -> LoadRun:
    run = LoadRun(Load(load, requests=count), began=0.0)
    per = 32 * load / speed
    for number in range(count):
        began = number // load * per
        arrivals = [began + per * (0.1 + 0.9 * i / 8) for i in range(9)]
        run.answers.append(_answer(number, began, arrivals))
    return run


def _answer(number: int, began: float, arrivals: list[float]) -> Answer:
    return Answer(number, began, "200", None, "text", 32, "length", arrivals, arrivals[-1])


def loads() -> dict[str, Any]:
    """What ``outrider bench serve --loads --out`` writes."""
    table = LoadTable(TablePlan((1, 2, 4, 8, 16), turns=3))
    for turn in range(3):
        for load in (1, 2, 4, 8, 16):
            for way, single in (("plain", 45.0), ("speculative", 110.0)):
                shared = single * load / (1 + load / (9 if way == "plain" else 4)) * (1 + 0.03 * turn)
                table.add(load, way, _answers(load, shared))
    return {"target": "a-model", "server_options": "--slots 16", "tokens_at_most": 64, **table.to_json(), "held": 0}


def one_load() -> dict[str, Any]:
    """What ``outrider bench serve --out`` writes."""
    found = figures([_answers(4, 90.0)]) | {"held": 0, "interrupted": False}
    alone = {"compared": 12, "same": 12, "differ": []}
    return {"target": "a-model", "server_options": "", "tokens_at_most": 64, **found, "alone": alone}


def certificate() -> dict[str, Any]:
    """What ``outrider verify --out`` writes."""
    found = Certificate("a-model", "a drafter", {"device": "Some CPU", "width": 9})
    for drafter, alpha in (("a drafter", 0.7), ("copy", 0.4)):
        for gamma in (1, 4, 8):
            found.greedy.append(IdentityResult(drafter, gamma, 8, (), 512, 0, alpha, 1 + alpha * gamma / 2, None))
            found.gumbel.append(IdentityResult(drafter, gamma, 8, (0, 1), 512, 0, alpha, 1 + alpha * gamma / 3, None))
    found.trees.append(IdentityResult("a drafter", 4, 1, (), 64, 0, 0.7, 3.1, None, tree=8))
    found.distribution.append(DistributionResult("rule", "a drafter", "maximal", 50_000, 40, 0.31, 0.012, True))
    found.distribution.append(DistributionResult("control", "a drafter", "wrong", 50_000, 40, 1e-30, 0.012, False, 0.2))
    found.invariance.append(InvarianceResult("other neighbours", 96, 0, True))
    found.seconds, found.finished, found.left_out = 12.0, True, ["distribution by runs of the model"]
    return found.to_json()


def text(number: int = 0) -> dict[str, Any]:
    """What ``outrider generate --json`` writes."""
    history = trace(seed=number)
    tokens = [token for r in history.records for token in (*r.drafted[: r.accepted], r.token)]
    return Output(show(tokens), tokens, "length", 10, history).to_json()


def batch() -> list[dict[str, Any]]:
    """The lines of ``outrider batch``, one of which failed."""
    found = [{"index": i, "id": f"line-{i}", "key": "k", **text(i)} for i in range(6)]
    return [*found, {"index": 6, "id": None, "key": "k", "error": "the prompt is empty"}]


def papers() -> list[dict[str, Any]]:
    """What ``outrider paper --out`` writes: its formulas, and a row that was measured."""
    lab, results = Lab(Amount.of(quick=True), device="cpu"), PaperResults(None)
    row = PaperRow({"our target": "t5-ende", "gamma": 7}, {"speed-up": 3.4}, {"speed-up": 1.9})
    trace = ColouredTrace("t5-ende", ((TracePart("accepted", "kept"), TracePart("corrected", " own")),))
    reads, run_of_target = TimePart("target reads", 3.0), TimePart("target run", 2.5)
    speculative = TimeLine("gamma 3", (reads, TimePart("guesses", 1.0), run_of_target))
    ways = (TimeLine("plain", (reads, run_of_target, run_of_target)), speculative)
    lines = TimeLines("times", "t5-ende, times", "ms", LETTERS, "target run", ways)
    unit = Unit("t5-ende", lambda lab: Found([row], [trace, lines], ["Counted on 7 tokens."]))
    measured = Experiment("table2", "Leviathan et al. 2023", "Table 2: wall-clock", [unit], "Smaller models.")
    return run([*formulas.EXPERIMENTS, measured], lab, results, lambda what, done, total: None)


def plan() -> dict[str, Any]:
    """What ``outrider plan --out`` writes."""
    cells = [PredictedCell("auto", gamma, batch, 1.1 + 0.1 * gamma, (1.0, 1.6)) for gamma in (1, 3) for batch in (1, 8)]
    checks = [CheckedCell("auto", 3, 1, 1.4, 1.35, (1.3, 1.4), 6, 6)]
    known: dict[str, Any] = dict.fromkeys(KEYS) | {
        "plan": PLAN_VERSION, "target": "a target", "conditions": {"cpu": "a CPU"}, "interrupted": False,
        "sentence": "use --draft auto --gamma 3", "cells": [cell.to_json() for cell in cells],
        "checks": [check.to_json() for check in checks], "recommended": [],
        "costs": [{"batch": 1, "plain_step_ms": 20.0, "turns": 3, "widths": {"1": 1.0, "4": 1.2}}],
        "acceptance": [{"draft": "auto", "task": "all", "prompts": 6, "alpha": 0.7, "tokens_per_run": 2.2,
                        "by_number": [0.7, 0.6, 0.5]}],
    }  # fmt: skip
    return known


def write_all(folder: Path) -> dict[str, Path]:
    """A file of every kind, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {
        "measure": measured(), "cpu": engines(), "serve": loads(), "load": one_load(), "verify": certificate(),
        "generate": text(), "plan": plan(), "gpu": json.loads(GPU.read_text("utf-8")),
    }  # fmt: skip
    paths = {name: folder / f"{name}.json" for name in whole}
    for name, value in whole.items():
        paths[name].write_text(strict_json(value, indent=1) + "\n", encoding="utf-8")
    paths["batch"] = folder / "batch.jsonl"
    paths["batch"].write_text("".join(strict_json(line) + "\n" for line in batch()), encoding="utf-8")
    paths["paper"] = folder / "paper.jsonl"
    paths["paper"].write_text("".join(strict_json(line) + "\n" for line in papers()), encoding="utf-8")
    paths["trace"] = folder / "trace.jsonl"
    trace().save(paths["trace"], lambda tokens: show(list(tokens)))
    return paths
