"""Requests made from the OpenAPI document: no answer is a server error, and none is missing."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from outrider.llm import LLM
from outrider.serve.engine import Limits
from serving import Served, serving

FEW, MANY = 60, 2000
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


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=["valid", "invalid"])
@pytest.mark.parametrize("path", PATHS[:2])
def test_thousands_of_requests(llm: LLM, path: str, mode: Any) -> None:
    with serving(llm, Limits(slots=4, context=120, waiting=64), most_tokens=8) as server:
        fuzz(server, path, MANY, mode)
        assert server.idle() and server.send("/health")[0] == 200
