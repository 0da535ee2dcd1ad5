"""The recipe that computes acceptance from finished answers: against real drafts, and against all ways to draft."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import library
from outrider.bench.cells import Cell
from outrider.bench.intervals import total_ratio
from outrider.drafters.head import HeadDrafter
from outrider.llm import LLM
from outrider.models.hub import loading
from outrider.training.data import from_answers
from outrider.training.distill import distill
from outrider.training.distill_plan import DistillPlan
from outrider.training.loop import Budget

PROMPTS = ["the end", "a thin", "then the", "the thin end of it"]


@pytest.fixture(scope="module")
def recipe() -> Any:
    return importlib.import_module("expected_alpha")


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> loading.Loaded:
    return loading.load(str(library.save_llama(tmp_path_factory.mktemp("expected") / "llama")), "cpu", "float32")


@pytest.fixture(scope="module")
def draft(target: loading.Loaded, tmp_path_factory: Any) -> Path:
    """One that knows the likeliest answers to the prompts, more or less by heart."""
    folder: Path = tmp_path_factory.mktemp("expected")
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": p}) for p in PROMPTS), encoding="utf-8")
    plan = DistillPlan(
        prompts=(str(folder / "p.jsonl"),), temperatures=(0.0,), text_tokens=4000, block=128, vocab=0, depth=3,
        generate_batch=8, budget=Budget(tokens=40_000, batch=4, rate=5e-3),
    )  # fmt: skip
    distill(target, folder / "draft", plan)
    return folder / "draft"


def test_what_is_expected_is_what_is_counted(recipe: Any, target: loading.Loaded, draft: Path) -> None:
    """At temperature 0 nothing is left to chance: drafts of the engine must have the very same acceptance."""
    drafter = HeadDrafter.load(draft)
    drafter.floor = 0.0
    engine = LLM(target, drafter, slots=1)
    words = {"temperature": 0.0, "gamma": 3, "max_new_tokens": 24}
    asked = recipe.messages(target, PROMPTS)
    outputs = [engine.generate(prompt, **words) for prompt in PROMPTS]
    counted = [Cell((output,)).shared for output in outputs]
    student = recipe.student_of(draft, target, 3)
    pairs = [(prompt, output.tokens) for prompt, output in zip(asked, outputs, strict=True)]
    expected = recipe.alpha_parts(student, from_answers(pairs, 1000), 0.0)
    assert 0.1 < total_ratio(counted) < 0.95
    for mine, (its, pair) in zip(expected, zip(counted, pairs, strict=True), strict=True):
        assert abs(mine[0] - its[0]) <= 1 and abs(mine[1] - its[1]) <= 3, pair  # guesses behind the end of a text
    parts = [(part.shared, part.examined) for part in expected]
    assert total_ratio(parts) == pytest.approx(total_ratio(counted), abs=0.05)


def test_all_ways_to_draft_a_text(recipe: Any) -> None:
    """Catches chances that do not add up: every pattern of guesses kept and refused is gone through."""
    kept = [[0.9, 0.2], [0.5, 0.7], [0.3, 0.6], [0.8, -1], [-1, -1]]
    overlap = [[0.6, 0.4], [0.7, 0.3], [0.2, 0.5], [0.9, -1], [-1, -1]]
    shared = examined = runs = 0.0
    for coins in itertools.product([True, False], repeat=10):
        chance, place, mine, count = 1.0, 0, 0.0, 0
        for (i, k), coin in zip(itertools.product(range(5), range(2)), coins, strict=True):
            keep = max(0.0, kept[i][k])
            chance *= keep if coin else 1 - keep
        while place < 5:
            run, runs = 0, runs + chance * (overlap[place][0] >= 0)
            while run < 2 and overlap[place][run] >= 0:
                mine, count = mine + overlap[place][run], count + 1
                if not coins[2 * place + run]:
                    break
                run += 1
            place += run + 1
        shared, examined = shared + chance * mine, examined + chance * count
    assert recipe._expected(overlap, kept, 0) == pytest.approx((shared, examined, 4, runs, 2.4, 4))


def test_the_command(
    recipe: Any, target: loading.Loaded, draft: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"task": "one" if i % 2 else "two", "prompt": prompt} for i, prompt in enumerate(PROMPTS)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = ["x", target.name, "--draft", str(draft), "--prompts", str(tmp_path / "p.jsonl"), "--answers", "3"]
    monkeypatch.setattr(sys, "argv", [*words, "--max-new-tokens", "16", "--gamma", "3", "--dtype", "float32"])
    recipe.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["temperature"], r["task"], r["prompts"]) for r in rows] == [
        (t, task, n) for t in (0.0, 1.0) for task, n in (("two", 2), ("one", 2), ("all", 4))
    ]
    assert all(0 < r["low"] <= r["alpha"] <= r["high"] < 1 for r in rows if r["temperature"] == 1)
