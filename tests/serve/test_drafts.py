"""A drafter for every request: rows of different drafters share a batch, and each keeps its text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import outrider
from library import save_llama
from outrider.drafters import BUILT_IN, Copying, ModelDrafter, Nothing
from outrider.errors import BadOption
from outrider.llm import LLM
from outrider.serve.engine import NOT_BY_REQUEST, Engine, Limits, drafters_by_name
from outrider.serve.run import slot_bytes
from serving import Served, serving

REPEATING = {"prompt": "one two one two one two one", "temperature": 0, "max_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def twin(target: Path, llm: LLM) -> LLM:
    """The target drafts for itself: all of its guesses are kept, so that it shows who drafted."""
    return llm.with_draft(str(target))


@pytest.fixture(scope="module")
def several(llm: LLM, twin: LLM) -> Iterator[Served]:
    """The server's own draft is a model; another model was loaded beside it."""
    with serving(llm, Limits(4, 120, 16), drafters={"twin": twin.drafter}) as server:
        yield server


def speculated(server: Served, draft: str | None, **more: Any) -> tuple[str, dict[str, Any]]:
    speculation = {"gamma": 4} if draft is None else {"gamma": 4, "draft": draft}
    status, found, _ = server.send("/v1/completions", {**REPEATING, **more, "speculation": speculation})
    assert status == 200, found
    return found["choices"][0]["text"], found["metrics"]["speculative_decoding"]


def test_a_request_names_its_drafter(several: Served) -> None:
    """``speculation.draft`` took nothing but the one drafter that the server was started with, and none."""
    text, _ = speculated(several, None)
    assert speculated(several, "twin")[1]["draft_acceptance_rate"] == 1
    assert speculated(several, "none")[1]["num_draft_tokens"] == 0
    rates = set()
    for draft in ("auto", "twin", "copy", "ngram", "suffix", "none"):
        found, told = speculated(several, draft)
        assert found == text
        rates.add(told["num_draft_tokens"])
    assert len(rates) >= 5 and several.idle()


def test_a_server_without_a_drafter_serves_those_who_name_one(llm: LLM) -> None:
    """Nothing was planned for where the model had no drafter of its own, whoever asked."""
    with serving(llm.with_draft(None), Limits(2, 120, 16)) as server:
        told = {}
        for draft in ("copy", "none"):
            _, found, _ = server.send("/v1/completions", {**REPEATING, "speculation": {"draft": draft}})
            told[draft] = found["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert told["copy"] > 0 and told["none"] == 0


def test_rows_of_all_drafters_together_have_their_text(several: Served) -> None:
    bodies = [{"prompt": f"the cat {n} the cat", "seed": n, "temperature": 0.15 * n} for n in range(12)]
    drafts = ["auto", "twin", "copy", "ngram", "suffix", None] * 2
    alone = [speculated(several, "none", **body)[0] for body in bodies]
    with ThreadPoolExecutor(12) as pool:
        found = list(
            pool.map(lambda pair: speculated(several, pair[0], **pair[1])[0], zip(drafts, bodies, strict=True))
        )
    assert found == alone and several.idle()


def test_a_draft_model_runs_nothing_for_others_rows(several: Served, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without speculation had its prompt run by the draft model all the same."""
    assert isinstance(llm.drafter, ModelDrafter)
    engine, runs = llm.drafter.model.engine, []  # type: ignore[attr-defined]
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda *given: (runs.append(1), run(*given))[1])
    for draft in ("copy", "none", "twin"):
        speculated(several, draft)
    assert not runs
    speculated(several, None)
    assert runs


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "uniform", "smollm2-135m", "a>b", "x.py:Class"])
def test_other_names_are_refused_with_those_there_are(
    several: Served, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of a request never reaches the file system."""
    monkeypatch.setattr("outrider.drafters.by_name.drafter_named", lambda *given: pytest.fail("a name was looked up"))
    body = {"prompt": "a", "speculation": {"draft": name}}
    status, answer, _ = several.send("/v1/completions", body)
    assert status == 400 and answer["error"]["param"] == "speculation.draft"
    assert "auto, none, " in answer["error"]["message"] and "twin, copy, ngram, suffix" in answer["error"]["message"]


def test_the_state_names_the_drafts(several: Served) -> None:
    _, status, _ = several.send("/v1/outrider/status")
    assert status["drafts"][1:] == ["twin", "copy", "ngram", "suffix", "none"]
    assert "/" not in "".join(status["drafts"])


def test_a_drafter_in_the_table_may_be_named_by_requests(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server had a list of its own, which suffix memory never came to. What is not for requests has its reason."""
    monkeypatch.setitem(BUILT_IN, "mine", lambda: Copying(shortest=1))
    assert set(drafters_by_name(llm, {})) >= set(BUILT_IN) - set(NOT_BY_REQUEST)
    assert all(NOT_BY_REQUEST.values()) and set(NOT_BY_REQUEST) <= set(BUILT_IN)
    with serving(llm, Limits(2, 120, 16)) as server:
        plain, _ = speculated(server, "none")
        found, told = speculated(server, "mine")
        assert found == plain and told["num_draft_tokens"] > 0
        _, answer, _ = server.send("/v1/completions", {**REPEATING, "speculation": {"draft": "my"}})
        assert "mine" in answer["error"]["message"]


def test_memory_counts_every_draft(llm: LLM, twin: LLM) -> None:
    alone = slot_bytes(llm, 120, [llm.drafter])
    assert slot_bytes(llm, 120, [llm.drafter, twin.drafter]) > alone > slot_bytes(llm, 120, [])


def test_with_cuda_graphs_there_is_one_drafter(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "graphs", True)
    assert len(drafters_by_name(llm, {})) == 1
    with pytest.raises(BadOption, match="--no-graphs"):
        drafters_by_name(llm, {"other": Nothing()})
    engine = Engine(llm, Limits(1, 120, 1))
    assert engine.decoder.drafter is llm.drafter


def test_a_server_is_started_with_several_drafts(target: Path, tmp_path: Path) -> None:
    from outrider.serve.run import load_drafters

    llm = outrider.load(str(target), "copy", "cpu", "float32", width=5, engine="torch")
    other = save_llama(tmp_path / "other", seed=5)
    assert list(load_drafters(llm, [str(other), "ngram"], trust=False)) == ["other", "ngram"]
    with pytest.raises(BadOption, match="twice"):
        load_drafters(llm, [str(other), str(other)], trust=False)
