"""What people who had just read the README ran into."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.llm import LLM
from outrider.models.hub.plain_settings import PlainTokenizer
from outrider.serve.constraint import Grammars
from outrider.serve.parsing import RequestParser
from outrider.serve.schema import ResponseFormat
from serving import Served


def test_json_with_the_tokenizer_that_loads_quickly(llm: LLM, target: Path) -> None:
    """The default model has it, and llguidance takes transformers' only: every JSON request was a 500."""
    light = SimpleNamespace(tokenizer=PlainTokenizer(target), target=llm.target, call=llm.call)
    found = Grammars(cast(LLM, light)).processors(ResponseFormat(type="json_object"), 0)
    assert len(found) == 1


def test_an_error_of_ours_is_counted_and_the_connection_stays(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert on 5xx never fired, and the client's next request met a closed connection."""

    def broken(*given: Any) -> Any:
        raise ValueError("broken")

    host = served.address.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"Content-Type": "application/json"}
    with monkeypatch.context() as patch:
        patch.setattr(RequestParser, "completion", broken)
        connection.request("POST", "/v1/completions", b'{"prompt": "a"}', headers)
        answer = connection.getresponse()
        assert answer.status == 500 and b"ValueError" in answer.read()
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert 'status="500"' in answer.read().decode()
    connection.close()


def test_options_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    nobody = str(tmp_path / "no model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for given, says in (
            (
                ["--port", port],
                f"cannot listen on 127.0.0.1 port {port} (Address already in use); choose another --port",
            ),
            (["--port", "0", "--host", "192.0.2.1"], "choose another --host"),
            (["--port", "0", "--host", "no-such-host.invalid"], "choose another --host"),
            (["--port", "0", "--timeout", "inf"], "timeout must be a number of seconds"),
            (["--port", "0", "--cors-origin", "x"], "cors_origin must be like https://example.org"),
            (["--port", "99999"], "--port"),
            (["--port", "0", "--max-tokens", "0"], "--max-tokens"),
            (["--port", "0", "--drain", "-1"], "--drain"),
        ):
            found = CliRunner().invoke(app, ["serve", nobody, *given])
            told = " ".join((found.output + str(found.exception)).split())
            assert found.exit_code != 0 and says in told, (given, told)


@pytest.mark.parametrize("command", ["serve", "chat", "generate", "batch"])
def test_every_command_that_loads_a_model_takes_a_kv_cache_dtype(command: str, tmp_path: Path) -> None:
    """``outrider.load`` had the option and no command did. A wrong one is refused before a model is looked for."""
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"prompt": "a"}\n')
    given = {
        "serve": [str(tmp_path), "--port", "0"], "chat": [str(tmp_path)],
        "generate": ["a", "--target", str(tmp_path)],
        "batch": [str(lines), str(tmp_path / "out.jsonl"), str(tmp_path)],
    }[command]  # fmt: skip
    found = CliRunner().invoke(app, [command, *given, "--kv-cache-dtype", "int3"])
    told = " ".join((found.output + str(found.exception)).split())
    assert found.exit_code != 0 and "kv_cache_dtype must be one of" in told and "'int3'" in told, told
