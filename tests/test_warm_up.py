"""``LLM.warm_up``: what calls need is made ready before them, and changes none of their texts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import library
import outrider
from outrider.core import host_sync
from outrider.decoding import batch
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import StepRunner
from outrider.errors import BadOption
from outrider.planning.policies import Setting

PROMPTS = ["hello the", "a", "the cat sat on the mat. the cat"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3, "coupling": "gumbel"},
    {"temperature": 1.0, "seed": 3, "gamma": 3},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.save_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["copy", None, "auto"], ids=str)
def draft(request: pytest.FixtureRequest) -> str | None:
    return request.param  # type: ignore[no-any-return]


def load(folder: Path, draft: str | None, **options: Any) -> outrider.LLM:
    return outrider.load(str(folder), draft, device="cpu", engine="torch", dtype="float32", **options)


def texts(llm: outrider.LLM, prompts: list[str], **options: Any) -> list[list[int]]:
    return [list(output.tokens) for output in llm.generate(prompts, max_new_tokens=20, **options)]


def test_later_calls_give_the_same_text(folder: Path, draft: str | None) -> None:
    cold, warm = load(folder, draft), load(folder, draft)
    warm.warm_up(rows=3)
    for options in OPTIONS:
        assert texts(warm, PROMPTS, **options) == texts(cold, PROMPTS, **options)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are replayed and launched early; on a CPU a replay is calling the step again."""
    monkeypatch.setattr(host_sync, "on_cpu", False)
    monkeypatch.setattr(StepRunner, "ahead", property(lambda runner: runner.graphs))
    # There, planning knows that guesses take their time whether they are made or not.
    monkeypatch.setattr(batch, "Setting", lambda *given: replace(Setting(*given), splits=False))


def captured(llm: outrider.LLM) -> list[int]:
    return [runner.captures for runner in llm.pool.idle]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("options", OPTIONS[:2], ids=["greedy", "gumbel"])
def test_later_calls_capture_nothing_new(folder: Path, rows: int, options: dict[str, Any]) -> None:
    """Whatever number of guesses "auto" chooses, or none: the first calls of a server were seconds late, one by one."""
    llm, cold = load(folder, "copy"), load(folder, "copy")
    llm.graphs, llm.pool = True, SessionPool(graphs=True)
    llm.warm_up(rows=rows, **options)
    before = captured(llm)
    assert sum(before) >= 3, "no guesses, the most, and something between"
    for prompt in PROMPTS:
        for _ in range(2):
            given = [prompt] * rows
            assert texts(llm, given, **options) == texts(cold, given, **options)
    assert texts(llm, given, **options, gamma=0) == texts(cold, given, **options, gamma=0)
    assert captured(llm) == before


@pytest.mark.usefixtures("as_on_a_gpu")
def test_plain_decoding_is_made_ready_too(folder: Path) -> None:
    """ "auto" asked a drafter that proposes nothing for guesses, four times: a graph each, in the first call."""
    llm = load(folder, None)
    llm.graphs, llm.pool = True, SessionPool(graphs=True)
    llm.warm_up()
    before = captured(llm)
    assert sum(before) == 1
    texts(llm, PROMPTS[:1])
    assert captured(llm) == before


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ("a", {}, "rows must be a whole number of at least 1, got 'a'"),
        (0, {}, "rows must be a whole number of at least 1, got 0"),
        (True, {}, "rows must be"),
        (1, {"max_new_tokens": 9}, "warm_up chooses max_new_tokens by itself"),
        (1, {"gamma": 2, "beams": 2}, "warm_up chooses gamma, beams by itself"),
    ],
)
def test_bad_arguments(rows: Any, options: dict[str, Any], told: str, folder: Path) -> None:
    """Each was a TypeError, or a message about prompts."""
    with pytest.raises(BadOption, match=re.escape(told)):
        load(folder, None).warm_up(rows, **options)
