"""Lenience, block coupling and draft options of ``LLM.generate``: what they do, and where it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outrider
from outrider.bench.measure import MeasureSettings, measure
from outrider.certificate import Plan
from outrider.certificate.distribution import distribution_tests
from outrider.cli.main import app
from outrider.cli.render import stats_table
from outrider.core.verification.choose import VERIFIERS, choose
from outrider.errors import BadOption
from outrider.trace import Trace, merge, summarise

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def llm(two_models: Path) -> outrider.LLM:
    return outrider.load(str(two_models / "target"), str(two_models / "draft"), dtype="float32")


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
def test_lenience_one_changes_nothing_and_less_keeps_more(llm: outrider.LLM, options: dict[str, Any]) -> None:
    """Catches a lenience that is dropped on the way, or that is felt where it should not be."""
    options = {**options, "max_new_tokens": 60, "eos": (), "gamma": 4}  # a policy would ask the clock
    exact, one = llm.generate(PROMPT, **options), llm.generate(PROMPT, lenience=1.0, **options)
    loose = llm.generate(PROMPT, lenience=0.01, **options)
    assert one.tokens == exact.tokens and one.stats.exact and one.stats.lenience == 1
    assert loose.stats.tokens_per_run > exact.stats.tokens_per_run
    assert loose.stats.alpha > exact.stats.alpha


def test_inexact_shows_everywhere(llm: outrider.LLM, tmp_path: Path) -> None:
    """Catches an inexact text that passes for an exact one: statistics, JSON, trace file, merged traces, the table."""
    output = llm.generate(PROMPT, lenience=0.3, max_new_tokens=20)
    assert not output.stats.exact and output.stats.lenience == 0.3
    assert output.to_json()["stats"]["exact"] is False and output.to_json()["stats"]["lenience"] == 0.3
    output.trace.save(tmp_path / "t.jsonl")
    assert not Trace.load(tmp_path / "t.jsonl").exact and Trace.load(tmp_path / "t.jsonl").lenience == 0.3
    both = summarise(merge([output.trace, llm.generate(PROMPT, max_new_tokens=5).trace]))
    assert not both.exact and both.lenience == 0.3
    cells = [str(cell) for column in stats_table(output.stats).columns for cell in column.cells]
    assert any("INEXACT" in cell for cell in cells) and any("lenience 0.3" in cell for cell in cells)
    assert not any("INEXACT" in str(c) for col in stats_table(llm.generate("the").stats).columns for c in col.cells)
    chunks = list(llm.stream(PROMPT, lenience=0.3, max_new_tokens=5))
    assert not chunks[-1].trace.exact


def test_on_the_command_line(two_models: Path, tmp_path: Path) -> None:
    """Catches options that a command takes and does not hand on."""
    run = CliRunner()
    base = [
        "generate",
        PROMPT,
        "-t",
        str(two_models / "target"),
        "-d",
        str(two_models / "draft"),
        "-n",
        "12",
        "--seed",
        "1",
    ]
    loose = run.invoke(app, [*base, "--lenience", "0.2"])
    assert loose.exit_code == 0 and "INEXACT" in loose.stderr and "lenience 0.2" in loose.stderr
    options = ["--temperature", "1", "--coupling", "block", "--draft-temperature", "0.6", "--draft-top-k", "9"]
    result = run.invoke(app, [*base, *options, "--draft-top-p", "0.8", "--json"])
    assert result.exit_code == 0, result.output
    stats = json.loads(result.stdout)["stats"]
    assert stats["coupling"] == "block" and stats["exact"] is True
    assert stats["drafter"].endswith("at temperature 0.6, top-k 9, top-p 0.8")
    (tmp_path / "asked.jsonl").write_text(json.dumps({"prompt": PROMPT, "task": "chat"}) + "\n")
    command = ["measure", str(two_models / "target"), "--prompts", str(tmp_path / "asked.jsonl"), "-n", "4"]
    table = run.invoke(app, [*command, "--lenience", "0.2"])
    assert table.exit_code == 0 and "INEXACT, lenience 0.2" in table.stdout.replace("\n", " ")
    refused = run.invoke(app, ["verify", str(two_models / "target"), "--lenience", "0.5"])
    assert isinstance(refused.exception, BadOption) and "nothing to certify" in str(refused.exception)


def test_measure_hands_the_rules_to_the_speculative_arm_only(llm: outrider.LLM) -> None:
    """Catches a plain baseline that is called inexact, or a draft option that plain decoding refuses."""
    options = {"max_new_tokens": 6, "seed": 0, "draft_temperature": 0.5, "coupling": "block"}
    (row, *_) = measure({"mine": llm}, {"task": [PROMPT]}, MeasureSettings((1.0,), 1, options), lambda *_: None).rows
    assert row.stats.drafter.endswith("at temperature 0.5") and row.stats.coupling == "block"


def test_block_coupling_at_temperature_zero_is_the_same_text(llm: outrider.LLM) -> None:
    """Catches a coupling that matters where there is nothing to couple."""
    options = {"max_new_tokens": 40, "eos": ()}
    assert llm.generate(PROMPT, coupling="block", **options).tokens == llm.generate(PROMPT, **options).tokens


def test_draft_options_reach_the_draft(llm: outrider.LLM) -> None:
    """Catches draft options without effect: under Gumbel coupling they change the guesses and never the text."""
    options = {"max_new_tokens": 40, "temperature": 1.0, "seed": 5, "coupling": "gumbel", "eos": ()}
    own, same = llm.generate(PROMPT, draft_temperature=0.2, **options), llm.generate(PROMPT, **options)
    assert own.tokens == same.tokens
    assert [r.drafted for r in own.trace.records] != [r.drafted for r in same.trace.records]
    copying = outrider.LLM(llm.target, outrider.Copying())
    with pytest.raises(BadOption, match="draws nothing"):
        copying.generate(PROMPT, temperature=1.0, draft_temperature=0.5)


def test_the_certificate_is_of_exact_rules(llm: outrider.LLM) -> None:
    """Catches a certificate for a lenient text, and a test that takes maximal coupling for every coupling."""
    with pytest.raises(BadOption, match="lenience 0.5 is inexact by design"):
        Plan(lenience=0.5)
    with pytest.raises(BadOption, match="coupling must be one of maximal, gumbel, block"):
        Plan(coupling="optimal")
    texts = [(llm.tokenizer.encode("the thin the thin"), llm.generate("the thin the thin", max_new_tokens=8).tokens)]
    results = distribution_tests(llm, texts, VERIFIERS["block"], (1000, 200), lambda share: None)
    assert {r.verifier for r in results if r.must_pass} == {"block"}
    assert all(r.passed for r in results if r.must_pass)


def test_which_rule_a_call_gets() -> None:
    """Catches a greedy call with the sampled form of lenience, which could never be lenient."""
    assert choose("block", greedy=False) is VERIFIERS["block"] and choose("block", greedy=True).name == "gumbel"
    assert choose("maximal", greedy=True, lenience=0.5).sees(outrider.Sampling()).temperature == 1
    assert choose("maximal", greedy=False, lenience=0.5).ceiling is not None
    assert not choose("maximal", greedy=True, lenience=0.5).exact and choose("maximal", True, 1.0).exact
