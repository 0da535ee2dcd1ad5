"""What testers sent that was answered badly: status, shape and words of refusals."""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider.llm import LLM
from outrider.serve.engine import Limits
from outrider.serve.observed import Observed
from serving import PATIENCE, Served, serving


@pytest.fixture(scope="module")
def small(llm: LLM) -> Iterator[Served]:
    with serving(llm, Limits(2, 120, 4), most_bytes=2000) as server:
        yield server


def ask(server: Served, method: str, path: str, **more: Any) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=PATIENCE)
    connection.request(method, path, headers={"Content-Type": "application/json"}, **more)
    answer = connection.getresponse()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    data = answer.read()
    connection.close()
    return answer.status, json.loads(data) if "json" in headers.get("content-type", "") else data, headers


def test_a_chunked_body_that_is_too_large_is_413(small: Served) -> None:
    """It has no Content-Length, and what stopped it was taken for a body that is not JSON: 400."""
    parts = iter([b'{"prompt": "', *[b"a" * 500] * 10, b'"}'])
    status, answer, _ = ask(small, "POST", "/v1/completions", body=parts, encode_chunked=True)
    assert status == 413 and "2000 bytes" in answer["error"]["message"] and answer["error"]["type"].endswith("_error")
    fitting = iter([b'{"prompt": "a", ', b'"max_tokens": 2}'])
    assert ask(small, "POST", "/v1/completions", body=fitting, encode_chunked=True)[0] == 200


@pytest.mark.parametrize("chunked", [True, False])
def test_who_is_still_sending_gets_the_answer(small: Served, chunked: bool) -> None:
    """Bytes that nobody had read reset the connection, and the client saw no 413."""
    parts = [b'{"prompt": "', *[b"a" * 2**16] * 64, b'"}']
    body = iter(parts) if chunked else b"".join(parts)
    status, answer, _ = ask(small, "POST", "/v1/completions", body=body, encode_chunked=chunked)
    assert status == 413 and "2000 bytes" in answer["error"]["message"]


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/nowhere", 404), ("POST", "/nowhere", 404), ("DELETE", "/nowhere", 404), ("POST", "/v1/embeddings", 404),
    ("GET", "/v1/nothing", 404), ("GET", "/v1/completions/", 404), ("PUT", "/v1", 404), ("GET", "/page.js/x", 404),
    ("GET", "/v1/completions", 405), ("DELETE", "/v1/chat/completions", 405), ("POST", "/v1/models", 405),
    ("PUT", "/v1/models/tiny", 405), ("POST", "/health", 405), ("POST", "/metrics", 405), ("POST", "/", 405),
    ("PATCH", "/v1/outrider/status", 405), ("PUT", "/page.js", 405),
])  # fmt: skip
def test_unknown_paths_are_404_and_wrong_methods_405(served: Served, method: str, path: str, status: int) -> None:
    """The files of the page stood in for every path: POST to an unknown one was 405, GET of a known one 404."""
    found, answer, headers = ask(served, method, path)
    assert found == status, answer
    assert set(answer["error"]) == {"message", "type", "param", "code"} and path in answer["error"]["message"]
    assert ("allow" in headers) == (status == 405)
    assert status == 404 or headers["allow"].split(", ")[0] in answer["error"]["message"]


def test_the_page_is_there(served: Served) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/index.html", "text/html"),
        ("/page.js", "javascript"),
        ("/page.css", "css"),
    ):
        status, _, headers = ask(served, "GET", path)
        assert status == 200 and kind in headers["content-type"]
        assert ask(served, "HEAD", path)[0] == 200


PROMPT = "prompt must be a text, a list of 1 to 64 texts, a list of token ids (whole numbers, 0 or more), or a list of"


@pytest.mark.parametrize("body, says, param", [
    ({"prompt": 5}, f"{PROMPT} 1 to 64 lists of token ids, got 5", "prompt"),
    ({"prompt": []}, "got []", "prompt"), ({"prompt": ["a", 5]}, "got ['a', 5]", "prompt"),
    ({"prompt": [[]]}, "got [[]]", "prompt"), ({"prompt": [-1]}, "got [-1]", "prompt"),
    ({"prompt": [1.5]}, "got [1.5]", "prompt"), ({"prompt": ["a"] * 99}, "...", "prompt"),
    ({}, "prompt is missing; it is required", "prompt"),
    ({"prompt": "a", "speculation": {"gamma": "many"}},
     "speculation.gamma must be a whole number of guesses from 0 to 64, or 'auto', got 'many'", "speculation"),
    ({"prompt": "a", "speculation": {"gamma": -1}}, "or 'auto', got -1", "speculation"),
    ({"prompt": "a", "speculation": {"gamma": 5}}, "from 0 to 4, or 'auto', got 5; for more the server must be started "
     "with a larger --width", "speculation.gamma"),
    ({"prompt": "a", "stop": 7}, "stop must be a text, or a list of up to 16 texts, got 7", "stop"),
    ({"prompt": "a", "temperature": 9}, "temperature: Input should be less than or equal to 2, got 9", "temperature"),
    ({"prompt": "a", "n": 0}, "n: Input should be greater than or equal to 1, got 0", "n"),
    ({"prompt": "a", "stream_options": {"x": 1}}, "unknown field 'stream_options.x'", "stream_options.x"),
    ({"prompt": "a", "draft": "copy"}, "unknown field 'draft'; put it under 'speculation': {'speculation': {'draft': ",
     "draft"),
    ({"prompt": "a", "gamma": 3}, "put it under 'speculation'", "gamma"),
    ({"prompt": "a", "coupling": "block"}, "put it under 'speculation'", "coupling"),
    ({"prompt": "a", "temprature": 1}, "it could change the answer, leave it out", "temprature"),
    ({"prompt": "a", "prediction": {"content": 3}}, "prediction.content must be a text, or", "prediction"),
])  # fmt: skip
def test_a_refusal_names_the_field_the_rule_and_the_value(served: Served, body: Any, says: str, param: str) -> None:
    """A bad prompt was answered with "prompt.str: Input should be a valid string", whatever it was."""
    status, answer, _ = served.send("/v1/completions", body)
    assert status == 400 and answer["error"]["param"] == param
    assert says in answer["error"]["message"] and len(answer["error"]["message"]) < 400


def test_acceptance_is_not_zero_while_none_is_known(small: Served) -> None:
    """A dashboard showed a drafter that never had been asked as one whose guesses were all rejected."""

    def acceptance() -> float:
        _, text, _ = small.send("/metrics")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        return float(families["outrider_acceptance_rate"].samples[0].value)

    small.engine.observed = Observed()
    assert math.isnan(acceptance())
    small.text("the cat", max_tokens=20, temperature=0, speculation={"gamma": 4})
    assert 0 <= acceptance() <= 1


def test_a_field_whose_name_is_not_unicode_is_refused(served: Served) -> None:
    """It was told that the body must be a JSON object, which it was."""
    status, answer, _ = served.send("/v1/completions", b'{"prompt": "a", "\\ud800": 1}')
    assert status == 400 and "a field's name must be Unicode, got '\\ud800'" in answer["error"]["message"]
