"""A real server on a free port, in a thread of the test, around a tiny model."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outrider.core.protocols import Drafter
from outrider.llm import LLM
from outrider.serve.app import make_app
from outrider.serve.engine import Engine, Limits
from outrider.serve.server import make_server
from outrider.serve.settings import ServerSettings

PATIENCE = 60.0
"""Seconds after which a test gives up on something that should happen at once."""


@dataclass
class Served:
    """A server under test."""

    engine: Engine
    address: str

    def send(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
        """Status, body and headers of an answer. A body that is bytes is sent as it is; None: GET."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, data, {"Content-Type": "application/json", **(headers or {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, _read(answer), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, _read(error), error.headers

    def text(self, prompt: str, **body: Any) -> str:
        """The text of a completion."""
        status, answer, _ = self.send("/v1/completions", {"prompt": prompt, **body})
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    def stream(self, path: str, body: Any) -> list[Any]:
        """The chunks of a streamed answer, without the last line."""
        status, answer, _ = self.send(path, {**body, "stream": True})
        assert status == 200, answer
        lines = [line.removeprefix("data: ") for line in answer.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def idle(self) -> bool:
        """Whether every slot is free again, in a while."""
        return eventually(lambda: self.engine.running == 0 and self.engine.waiting == 0)


def _read(answer: Any) -> Any:
    data = answer.read()
    return json.loads(data) if "json" in (answer.headers.get("content-type") or "") else data.decode()


def eventually(condition: Any) -> bool:
    """Whether a condition comes true before patience ends."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@contextmanager
def serving(
    llm: LLM, limits: Limits | None = None, drafters: Mapping[str, Drafter] | None = None, **settings: Any
) -> Iterator[Served]:
    """A server around a model, stopped and drained at the end."""
    engine = Engine(llm, limits or Limits(slots=4, context=120, waiting=64), drafters or {})
    app = make_app(engine, ServerSettings(**{"model": "tiny", "most_tokens": 100, **settings}))
    server = make_server(app, "127.0.0.1", 0, drain=5)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert eventually(lambda: server.started or not thread.is_alive()) and server.started
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(engine, f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
