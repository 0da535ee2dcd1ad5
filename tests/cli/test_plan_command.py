"""``outrider plan`` and ``--plan FILE``: what is written is taken up again, what is given wins, the rest is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import library
from command import Command
from outrider.bench.plan import run as running
from outrider.bench.plan.plan_file import KEYS, PlanFile

LINES = [("first", "the end"), ("first", "then and there"), ("second", "a b c a b c a b")]
QUICK = ("--dtype", "float32", "-n", "6", "--turns", "1")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"task": t, "prompt": p}) + "\n" for t, p in LINES), encoding="utf-8")
    return str(file)


def edited(path: Path, **more: Any) -> str:
    """The same plan with other values."""
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, **more}, indent=1), encoding="utf-8")
    return str(path)


@pytest.fixture
def plan(outrider: Command, chatty: str, prompts: str, tmp_path: Path) -> Path:
    """A plan that says: copy, gamma 3, width 5, whatever was measured."""
    path = tmp_path / "plan.json"
    made = outrider("plan", chatty, "--drafts", "copy", "--prompts", prompts, *QUICK, "--width", "5", "--gamma", "1,3",
                    "--out", str(path))  # fmt: skip
    assert made.code == 0, made.err
    edited(path, recommended=[{"batch": 1, "draft": "copy", "gamma": 3, "speedup": 1.5, "interval": [1.1, 1.9]}])
    return path


def test_a_plan_is_printed_written_and_shown_again(
    outrider: Command, chatty: str, prompts: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    words = ["plan", chatty, "--drafts", "copy,uniform", "--prompts", prompts, "--batch", "1,2", "--gamma", "1,2",
             "--check", "2", *QUICK, "--out", str(path)]  # fmt: skip
    made = outrider(*words)
    assert made.code == 0, made.err
    content = PlanFile.read(path).content
    assert set(content) == set(KEYS) and content["fingerprint"] and content["conditions"]["dtype"] == "float32"
    assert {(c["draft"], c["gamma"]) for c in content["checks"] if c["batch"] == 1} >= {("copy", 2), ("uniform", 2)}
    assert {row["task"] for row in content["acceptance"]} == {"first", "second", "all"}
    assert content["command"].startswith("outrider plan ") and "--check 2" in content["command"]
    for said in ("Cost of a run by width", "Predicted speed-up by gamma", "Predicted and measured",
                 "within 10 % of what was measured", content["sentence"]):  # fmt: skip
        assert said in made.out
    again = outrider("plan", "--from", str(path))
    assert again.code == 0 and again.out == made.out
    edited(path, others_cores=1.26)
    assert "other programs used 1.3 cores meanwhile" in outrider("plan", "--from", str(path)).out
    edited(path, others_cores=content["others_cores"])
    told = outrider("plan", "--from", str(path), "--json")
    assert json.loads(told.out) == content


def test_generate_takes_the_plans_draft_and_gamma(outrider: Command, chatty: str, plan: Path) -> None:
    """Catches a plan that is read and not used, and one that overrides what was asked for."""

    def drafted(*words: str) -> tuple[str, int, str]:
        trace = plan.with_name("trace.jsonl")
        said = outrider("generate", "a b c a b c a b c", "-t", chatty, "--dtype", "float32", "-n", "12", "--plan",
                        str(plan), "--trace", str(trace), "--json", *words)  # fmt: skip
        assert said.code == 0, said.err
        head, *rest = (json.loads(line) for line in trace.read_text("utf-8").splitlines())
        return head["drafter"], max(len(record["drafted"]) for record in rest), said.err

    drafter, most, said = drafted()
    assert (drafter, most) == ("copy", 3) and "warning" not in said
    assert drafted("--gamma", "2")[:2] == ("copy", 2)
    assert drafted("--draft", "uniform", "--gamma", "4")[:2] == ("uniform", 4)  # the width is the plan's: 5
    edited(plan, recommended=[{"batch": 1, "draft": "none", "gamma": 0, "speedup": 1.0, "interval": [1, 1]}])
    assert drafted()[:2] == ("none", 0)


def test_measure_takes_a_plan(outrider: Command, chatty: str, plan: Path, prompts: str) -> None:
    said = outrider("measure", chatty, "--plan", str(plan), "--dtype", "float32", "-n", "4", "--prompts", prompts,
                    "--json")  # fmt: skip
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert {(row["draft"], row["gamma"]) for row in report["rows"]} == {("copy", 3)}
    assert report["conditions"]["width"] == 5 and "--plan" in report["command"]


def test_other_conditions_are_a_warning_and_another_target_an_error(
    outrider: Command, chatty: str, plan: Path, tmp_path: Path
) -> None:
    """The text is right with any plan, so that a slower machine is no reason to refuse it; another model is."""
    words = ["generate", "the end", "-n", "2", "--plan", str(plan), "--json"]
    said = outrider(*words, "-t", chatty, "--dtype", "auto")
    assert said.code == 0 and "dtype is auto, the plan has float32; speeds may differ" in said.err
    said = outrider(*words, "-t", chatty, "--dtype", "float32", "--temperature", "1")
    assert said.code == 0 and "temperature is 1, the plan has 0" in said.err
    edited(plan, device="Another CPU")
    assert "the plan is of Another CPU" in outrider(*words, "-t", chatty, "--dtype", "float32").err
    other = str(library.save_llama(tmp_path / "other", seed=7))
    said = outrider(*words, "-t", other)
    assert said.code == 2 and "key 'target'" in said.err and said.err.count("\n") == 1


BAD = [
    (["--batch", ""], "--batch is empty"),
    (["--batch", "1,x"], "--batch must be whole numbers from 1 on, separated by commas, got 'x'"),
    (["--batch", "0"], "--batch must be whole numbers from 1 on, separated by commas, got '0'"),
    (["--gamma", "9"], "--gamma 9 needs a width of 10, got 9; pass --width 10"),
    (["--gamma", ","], "--gamma is empty"),
    (["--check", "12"], "check names gamma [12], which is not predicted"),
    (["--drafts", ","], "--drafts is empty"),
    (["--drafts", "copy,copy"], "each can be named once"),
    (["--drafts", "none"], "--drafts none is what drafts are compared with"),
    (["--export", "mlx"], "--export must be one of vllm, sglang, llama.cpp, transformers, got 'mlx'"),
    (["--export-to", "x.sh"], "--export-to x.sh needs --export"),
    (["--out", "/no/such/place/plan.json"], "does not exist; make it first"),
    (["--turns", "0"], "turns must be a whole number of at least 1"),
    (["--temperature", "-1"], "temperature"),
]


@pytest.mark.parametrize(("words", "said"), BAD)
def test_bad_options_are_one_line(outrider: Command, chatty: str, prompts: str, words: list[str], said: str) -> None:
    found = outrider("plan", chatty, "--prompts", prompts, *words)
    assert found.code == 2 and said in found.err and found.err.strip().count("\n") == 0, found.err


def test_prompts_and_plans_that_cannot_be_read(outrider: Command, chatty: str, plan: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"prompt": "a"}\n{"question": "b"}\n', encoding="utf-8")
    found = outrider("plan", chatty, "--prompts", str(wrong))
    assert found.code == 2 and f"{wrong}, line 2: needs a JSON object with a prompt or turns" in found.err
    found = outrider("plan")
    assert found.code == 2 and "no target: name a model" in found.err
    found = outrider("plan", "--from", str(plan), chatty, "--turns", "2")
    assert (
        found.code == 2
        and "--turns, TARGET have no meaning with --from, which measures nothing; leave them out" in found.err
    )
    found = outrider("plan", "--from", str(plan), "--turns", "2")
    assert found.code == 2 and "--turns has no meaning with --from, which measures nothing; leave it out" in found.err
    plan.write_text(plan.read_text("utf-8")[:200], encoding="utf-8")
    for words in (["plan", "--from", str(plan)], ["generate", "a", "-t", chatty, "--plan", str(plan)],
                  ["measure", chatty, "--plan", str(plan)], ["serve", chatty, "--plan", str(plan)]):  # fmt: skip
        found = outrider(*words)
        assert found.code == 2 and "not whole JSON" in found.err, (words, found.err)


def test_nothing_overwrites_a_plan(outrider: Command, plan: Path, tmp_path: Path) -> None:
    whole = plan.read_bytes()
    for words in (["--export", "vllm", "--export-to", str(plan)], ["--out", str(plan)]):
        found = outrider("plan", "--from", str(plan), *words)
        assert found.code == 2 and f"are both {plan}; name another file" in found.err and plan.read_bytes() == whole
    link = tmp_path / "link.json"
    link.symlink_to(plan)
    found = outrider("plan", "--from", str(plan), "--export", "vllm", "--export-to", str(link))
    assert found.code == 2 and "name another file" in found.err and plan.read_bytes() == whole


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "1.5"])
def test_numbers_that_are_none(outrider: Command, chatty: str, number: str) -> None:
    found = outrider("plan", chatty, f"--batch={number}")
    assert found.code == 2 and "--batch must be whole numbers from 1 on" in found.err and len(found.err) < 400


@pytest.mark.parametrize("change", [{"cells": [{}]}, {"cells": [1]}, {"conditions": None}, {"options": {}}])
def test_plans_that_were_edited(outrider: Command, plan: Path, change: dict[str, Any]) -> None:
    plan.write_text(json.dumps(json.loads(plan.read_text("utf-8")) | change), encoding="utf-8")
    found = outrider("plan", "--from", str(plan))
    assert found.code == 2 and f"plan {plan}" in found.err and "again" in found.err


def test_an_export_is_printed_or_written(outrider: Command, plan: Path, tmp_path: Path) -> None:
    found = outrider("plan", "--from", str(plan), "--export", "vllm")
    assert found.code == 0 and '"num_speculative_tokens": 3' in found.out
    file = tmp_path / "serve.sh"
    assert outrider("plan", "--from", str(plan), "--export", "sglang", "--export-to", str(file)).code == 0
    assert "--speculative-num-draft-tokens 4" in file.read_text("utf-8")
    told = json.loads(outrider("plan", "--from", str(plan), "--export", "transformers", "--json").out)
    assert "prompt_lookup_num_tokens" in told["export"]


def test_ctrl_c_writes_what_was_measured(
    outrider: Command, chatty: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches minutes of measuring that are gone, and a plan of nothing that is then followed."""

    def pressed(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "timed_text", pressed)
    path = tmp_path / "plan.json"
    found = outrider("plan", chatty, "--drafts", "copy", "--prompts", prompts, *QUICK, "--out", str(path))
    assert (
        found.code == 130
        and f"interrupted after 0 of 3 prompts: what was measured is shown, and kept in {path}" in (found.err)
    )
    assert json.loads(path.read_text("utf-8"))["costs"] and "no prompt was finished" in found.out
    found = outrider("generate", "a", "-t", chatty, "--plan", str(path))
    assert found.code == 2 and "key 'recommended' is empty" in found.err


def test_a_plan_runs_no_code(outrider: Command, chatty: str, plan: Path, tmp_path: Path) -> None:
    """A file that somebody sent would have imported what it names."""
    content = json.loads(plan.read_text("utf-8"))
    content["recommended"] = [choice | {"draft": "own.py:Drafter"} for choice in content["recommended"]]
    path = tmp_path / "sent.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    words = ["generate", "a", "-t", chatty, "--dtype", "float32", "-n", "2", "--plan", str(path)]
    said = outrider(*words)
    assert said.code == 2 and "is code, which a plan does not run; name it with --draft" in said.err
    assert outrider(*words, "--draft", "copy").code == 0
