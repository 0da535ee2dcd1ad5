"""One streamed request to a server with OpenAI's API, and when its tokens came."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from outrider.errors import BadOption, require
from outrider.runtime import timer

SAMPLED = 0.8
"""Temperature of every other request; the rest are greedy."""


@dataclass(frozen=True)
class Address:
    """Where requests go."""

    url: str  # without /v1
    key: str | None = None
    patience: float = 600.0  # seconds without a byte after which an answer counts as lost

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        require(known, f"url must be like http://127.0.0.1:8000, got {self.url!r}")

    def connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.patience)

    def headers(self) -> dict[str, str]:
        own = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return {"Content-Type": "application/json", **own}

    def get(self, path: str) -> str:
        """The body of a GET; raises where there is none."""
        connection = self.connection()
        try:
            connection.request("GET", path, headers=self.headers())
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise BadOption(f"url {self.url}: no answer ({error}); start a server there, or name another") from None
        finally:
            connection.close()
        require(answer.status == 200, f"url {self.url}{path}: status {answer.status}, expected 200: {text:.200}")
        return text

    def model(self) -> str:
        """The name of the model that is served."""
        return str(json.loads(self.get("/v1/models"))["data"][0]["id"])


@dataclass(frozen=True)
class Requests:
    """Requests by number: the same ones whatever load they come with. Each has its own seed and says its number first,
    so that no two prompts are equal and a prefix cache finds what it would find in real traffic."""

    prompts: Sequence[str]
    model: str
    tokens: int = 64  # of an answer at most
    chat: bool = True
    speculation: bool | None = None  # None: as the server decides

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, number: int) -> dict[str, Any]:
        text = f"({number + 1}) {self.prompts[number % len(self.prompts)]}"
        sampled = (number + number // len(self.prompts)) % 2  # every prompt comes both ways
        asked: dict[str, Any] = {
            "model": self.model, "max_tokens": self.tokens, "temperature": SAMPLED if sampled else 0.0, "seed": number,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        asked |= {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}
        return asked if self.speculation is None else asked | {"speculation": {"enabled": self.speculation}}


@dataclass
class Answer:
    """What came of a request."""

    number: int
    began: float
    status: str = "connection"  # of HTTP; connection: there is none; stream: it broke off or reported an error
    error: str | None = None
    text: str = ""
    tokens: int = 0
    reason: str | None = None  # why the text ended
    arrivals: list[float] = field(default_factory=list)  # when chunks with text came
    ended: float = 0.0
    retry_after: float = 0.0

    @property
    def complete(self) -> bool:
        return self.error is None

    @property
    def per_token(self) -> float | None:
        """Seconds per token behind the first."""
        count = self.tokens - 1
        return (self.arrivals[-1] - self.arrivals[0]) / count if count > 0 and len(self.arrivals) > 1 else None


def ask(address: Address, requests: Requests, number: int, stop: threading.Event) -> Answer | None:
    """Send a request and read its answer; None where ``stop`` came first."""
    body = json.dumps(requests.body(number))
    answer = Answer(number, timer.now())
    connection = address.connection()
    try:
        connection.request("POST", requests.path, body, address.headers())
        response = connection.getresponse()
        answer.status = str(response.status)
        if response.status != 200:
            answer.error = response.read().decode("utf-8", "replace")[:500]
            answer.retry_after = _seconds(response.headers.get("Retry-After"))
        else:
            for event in _events(response):
                if stop.is_set():
                    return None
                _take(answer, event)
            if answer.reason is None and answer.error is None:
                answer.status, answer.error = "stream", "the stream ended before the answer did"
    except (OSError, ValueError, http.client.HTTPException) as error:
        answer.status = "stream" if answer.status == "200" else answer.status
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    answer.ended = timer.now()
    answer.tokens = answer.tokens or len(answer.arrivals)  # a server that counts none sends one per chunk
    return None if stop.is_set() and not answer.complete else answer


def _events(response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """Server-sent events, up to the last one."""
    while line := response.readline():
        data = line.strip().removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if data:
            yield json.loads(data)


def _take(answer: Answer, event: Mapping[str, Any]) -> None:
    if "error" in event:
        answer.status, answer.error = "stream", str(event["error"])[:500]
        return
    for choice in event.get("choices", ()):
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        if text:
            answer.text += text
            answer.arrivals.append(timer.now())
        answer.reason = choice.get("finish_reason") or answer.reason
    if usage := event.get("usage"):
        answer.tokens = int(usage["completion_tokens"])


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:  # a date, as HTTP allows
        return 1.0
