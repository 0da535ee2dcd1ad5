"""Requests made from the OpenAPI document: no answer is a server error, and none is missing."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from outrider.llm import LLM
from outrider.serve.engine import Engine, Limits
from serving import Served, serving

FEW = 60
"""Of each kind. ``recipes/serve_fuzz.py`` sends thousands."""

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models/{name}", "/v1/outrider/status")


def fuzz(server: Served, path: str, examples: int, mode: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    operation = schema[path]["POST" if "completions" in path else "GET"]

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def requests(case: Any) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("max_tokens"), int):
            case.body["max_tokens"] = min(case.body["max_tokens"], 4)
        response = case.call(timeout=60)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    requests()


MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@pytest.mark.parametrize("mode", MODES, ids=["valid", "invalid"])
@pytest.mark.parametrize("path", PATHS[:2])
def test_a_few_hundred_requests(llm: LLM, path: str, mode: Any) -> None:
    with serving(llm, Limits(slots=4, context=120, waiting=64), most_tokens=8) as server:
        fuzz(server, path, FEW, mode)
        assert server.idle() and server.send("/health")[0] == 200


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that sends many more of them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "recipes"))
    return importlib.import_module("serve_fuzz")


def test_the_recipe_finds_nothing(llm: LLM, recipe: Any) -> None:
    with serving(llm, Limits(slots=4, context=120, waiting=64), most_tokens=8) as server:
        counts = recipe.Counts()
        recipe.fuzz(server.address, 160, 0, counts)
        assert not counts.failures and sum(counts.kinds.values()) > 120 and len(counts.kinds) == 11
        assert {"200", "400", "405"} <= set(counts.statuses)


def test_the_recipe_finds_a_server_error_a_hang_and_a_leaked_row(
    llm: LLM, recipe: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(llm, Limits(slots=1, context=120, waiting=8), most_tokens=8) as server:
        for module in ("serve_fuzz", "fuzz_requests"):
            monkeypatch.setattr(f"{module}.PATIENCE", 0.3)
        counts = recipe.Counts()
        client = recipe.Client(server.address, counts)
        good = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
        with monkeypatch.context() as patch:
            patch.setattr("outrider.serve.parsing.RequestParser.completion", lambda *given: 1 / 0)
            client.send("an error", "POST", "/v1/completions", good, "application/json")
        observe, server.engine.observe = server.engine.observe, lambda event: time.sleep(0.5)
        client.send("a hang", "POST", "/v1/completions", good, "application/json")
        server.engine.observe = observe
        assert server.idle()
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "running", property(lambda engine: 1))
            recipe.check_idle(server.address, counts)
        assert [failure.split(":")[0] for failure in counts.failures] == ["an error", "a hang", "afterwards"]
        assert "500" in counts.failures[0] and "no answer" in counts.failures[1] and "1 rows" in counts.failures[2]


@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_shows_what_was_counted(
    recipe: Any, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(url: str, count: int, seed: int, counts: Any, advance: Any) -> None:
        counts.add("truncated", "400")
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe, "fuzz", interrupted)
    monkeypatch.setattr(sys, "argv", ["serve_fuzz.py", "--url", "http://127.0.0.1:1", *(["--json"] if as_json else [])])
    with pytest.raises(SystemExit) as ended:
        recipe.main()
    said = capsys.readouterr().out
    assert ended.value.code == 130
    assert json.loads(said)["sent"] == 1 if as_json else "1 of 10000 requests, stopped" in said
