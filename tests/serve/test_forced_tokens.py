"""Tokens that a grammar forces are guesses that cost no draft: the same text from fewer runs of the target."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outrider.llm import LLM
from outrider.serve.engine import Limits
from serving import Served, serving

SCHEMA = {
    "type": "object",
    "properties": {"temperature": {"enum": ["xyz", "xyw"]}, "pressure": {"type": "boolean"}},
    "required": ["temperature", "pressure"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "seed": 4, "temperature": 0.7}


@pytest.fixture(scope="module", params=["none", "copy", "model"])
def formal(request: pytest.FixtureRequest, llm: LLM) -> Iterator[Served]:
    """A server whose drafter knows nothing of JSON, copies, or is a model that sees the grammar itself."""
    with serving(llm if request.param == "model" else llm.with_draft(request.param), Limits(4, 120, 8)) as server:
        yield server


def answer(server: Served, **more: Any) -> tuple[str, int]:
    """The text of an answer, and the target runs it took."""
    status, found, _ = server.send("/v1/chat/completions", {**CHAT, "response_format": FORM, **more})
    assert status == 200, found
    return found["choices"][0]["message"]["content"], found["metrics"]["speculative_decoding"]["num_steps"]


def test_forced_tokens_are_guessed_without_a_drafter(formal: Served) -> None:
    """A server whose drafter had no guess for JSON took a run for every token of a key that could be no other."""
    text, plain = answer(formal, speculation={"enabled": False})
    guessed, runs = answer(formal, speculation={"gamma": 4})
    assert guessed == text and plain >= len(text) >= 40
    assert runs <= plain // 3
    planned, runs = answer(formal)  # whatever the planner thinks of the drafter
    assert planned == text and runs <= plain // 2
    assert formal.idle()


def test_forced_rows_beside_others_change_nobody(formal: Served) -> None:
    free = {"prompt": "the cat", "max_tokens": 40, "seed": 3, "ignore_eos": True}
    alone, text = formal.text(**free), answer(formal)[0]  # type: ignore[arg-type]
    with ThreadPoolExecutor(4) as pool:
        forced = [pool.submit(answer, formal, speculation={"gamma": gamma}) for gamma in (1, 3)]
        others = [pool.submit(lambda: formal.text(**free)) for _ in range(2)]  # type: ignore[arg-type]
        assert [one.result()[0] for one in forced] == [text] * 2 and [one.result() for one in others] == [alone] * 2


def test_a_sampled_answer_by_the_papers_rule_follows_its_schema(formal: Served) -> None:
    """Without a seed the text may be any; what the grammar forces may not differ."""
    for coupling in ("maximal", "block"):
        body = {"speculation": {"coupling": coupling, "gamma": 4}, "seed": None}
        text, _ = answer(formal, **body)
        assert text.startswith('{"temperature": "xy') and text.endswith(("true}", "false}"))
