"""Keys, limits, headers: what a stranger may not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.errors import BadOption
from outrider.llm import LLM
from outrider.serve.engine import Limits
from outrider.serve.settings import KEY_VARIABLE, public_name, read_keys, served_names
from serving import Served, serving

KEY = "a-key-of-the-test"


@pytest.fixture(scope="module")
def locked(llm: LLM) -> Iterator[Served]:
    limits = Limits(slots=2, context=120, waiting=4)
    with serving(
        llm, limits, keys=(KEY, "another-key"), most_bytes=2000, hosts=served_names("127.0.0.1", ())
    ) as server:
        yield server


def test_a_key_opens_the_api(locked: Served) -> None:
    body = {"prompt": "a", "max_tokens": 2}
    for wrong in ({}, {"Authorization": "Bearer wrong-key"}, {"Authorization": KEY}, {"Authorization": f"Basic {KEY}"}):
        for path, sent in (
            ("/v1/completions", body),
            ("/v1/models", None),
            ("/metrics", None),
            ("/openapi.json", None),
        ):
            status, answer, _ = locked.send(path, sent, wrong)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key" and KEY not in str(answer)
    for key in (KEY, "another-key"):
        assert locked.send("/v1/completions", body, {"Authorization": f"Bearer {key}"})[0] == 200
    assert locked.send("/health")[0] == 200  # load balancers have no key


def test_a_body_may_not_be_too_large(locked: Served) -> None:
    status, answer, _ = locked.send("/v1/completions", {"prompt": "a" * 3000}, {"Authorization": f"Bearer {KEY}"})
    assert status == 413 and "2000 bytes" in answer["error"]["message"]


def test_another_host_name_is_refused(locked: Served) -> None:
    """A web page whose name an attacker points at 127.0.0.1 must not reach a server there (DNS rebinding)."""
    assert locked.send("/v1/models", None, {"Host": "evil.example", "Authorization": f"Bearer {KEY}"})[0] == 403


def test_answers_carry_security_headers_and_no_cors(served: Served) -> None:
    for path in ("/", "/v1/models", "/nowhere"):
        _, _, headers = served.send(path, None, {"Origin": "https://evil.example"})
        assert (
            headers["X-Content-Type-Options"] == "nosniff"
            and "default-src 'self'" in headers["Content-Security-Policy"]
        )
        assert headers["X-Frame-Options"] == "DENY" and headers["Access-Control-Allow-Origin"] is None


def test_cors_is_for_those_who_were_named(llm: LLM) -> None:
    with serving(llm, Limits(1, 120, 1), origins=("https://good.example",)) as server:
        _, _, good = server.send("/v1/models", None, {"Origin": "https://good.example"})
        _, _, evil = server.send("/v1/models", None, {"Origin": "https://evil.example"})
    assert good["Access-Control-Allow-Origin"] == "https://good.example" and evil["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("path", ["/../engine.py", "/%2e%2e/engine.py", "/..%2f..%2fpyproject.toml", "//etc/passwd"])
def test_no_path_leaves_the_page(served: Served, path: str) -> None:
    status, answer, _ = served.send(path)
    assert status in (404, 405) and "import" not in str(answer)


def test_keys_come_from_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\n\nfirst-key-here\n second-key-here \n")
    monkeypatch.setenv(KEY_VARIABLE, "third-key-here")
    assert read_keys(file) == ("first-key-here", "second-key-here", "third-key-here")
    file.write_text("# none\n")
    with pytest.raises(BadOption, match="no key"):
        read_keys(file)
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(BadOption, match="8 characters") as refused:
        read_keys(None)
    assert "short;" not in str(refused.value)


def test_paths_of_the_machine_are_not_told(tmp_path: Path) -> None:
    assert public_name(str(tmp_path)) == tmp_path.name and public_name("org/model") == "org/model"
