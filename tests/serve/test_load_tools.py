"""What load tools send beyond OpenAI's API."""

from __future__ import annotations

import pytest

from serving import Served


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_in_every_chunk(served: Served, path: str) -> None:
    """guidellm asks for vLLM's ``continuous_usage_stats`` always: every one of its requests was refused with 400."""
    asked = {"prompt": "the cat"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "so"}]}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**asked, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    chunks = [chunk for chunk in served.stream(path, {**body, "stream_options": options}) if "usage" in chunk]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert len(counts) > 2 and counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 6
    for options in ({"include_usage": True}, {"continuous_usage_stats": True}):
        chunks = served.stream(path, {**body, "stream_options": options})
        assert sum("usage" in chunk for chunk in chunks) == options.get("include_usage", False)
