"""``outrider serve --gamma``, which a plan sets: for requests that name none and use the server's own drafter."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.llm import LLM
from outrider.serve.parsing import RequestParser
from outrider.serve.schema import CompletionBody

SAID: list[tuple[dict[str, Any], int | None]] = [
    ({}, 3), ({"draft": "auto"}, 3), ({"gamma": 2}, 2), ({"gamma": "auto"}, None), ({"enabled": False}, 0),
    ({"draft": "copy"}, None), ({"draft": "none"}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("speculation", "gamma"), SAID)
def test_a_servers_gamma_is_for_requests_that_name_none(llm: LLM, speculation: Any, gamma: int | None) -> None:
    """Catches a default that overrides a request, or that is used with a drafter it was not chosen for."""
    parser = RequestParser(llm, "tiny", 100, 50, ("copy",), 3)
    (job,) = parser.completion(CompletionBody(prompt="a", speculation=speculation))
    assert job.gamma == gamma
