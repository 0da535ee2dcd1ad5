"""Requests that no client should send, made by hand, and what is counted of the answers. For ``serve_fuzz.py``."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 60.0
"""Seconds after which an answer counts as one that does not come."""

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATHS = (COMPLETIONS, CHAT)

GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "the cat", "max_tokens": 4},
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
}
FIELDS = (
    "prompt", "messages", "model", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "stop", "seed", "stream",
    "stream_options", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice", "prediction",
    "speculation", "echo", "suffix", "best_of", "user", "metadata", "no such field", "\ud800",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1.5, 10**9, 2**63, -(2**63), 10**400, 1e308, 5e-324, float("nan"), float("inf"), "",
    "a", "\ud800", "\udfff a", "\x00", "\U0001f4a5" * 50, "\u202e\u0000", "a" * 10_000, "../../etc/passwd", "${x}", [],
    [[]], [1, "a"], [-1], [2**31], ["a", ["b"]], [None], {}, {"": ""}, {"a": {"b": [{}]}}, {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}, {"type": "content", "content": "x" * 99},
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}, {"gamma": -1}, {"gamma": 10**20},
    {"draft": "/dev/zero"}, {"draft": "copy"}, {"enabled": "yes"}, {"coupling": "maximal"}, {"trace": True},
)  # fmt: skip


@dataclass
class Counts:
    """What came back."""

    statuses: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, status: str) -> None:
        self.kinds[kind] += 1
        self.statuses[status] += 1

    def fail(self, kind: str, why: str, sent: object) -> None:
        self.failures.append(f"{kind}: {why}; sent {ascii(sent)[:300]}")

    def report(self, asked: int) -> dict[str, Any]:
        sent = sum(self.kinds.values())
        return {"asked": asked, "sent": sent, "statuses": dict(sorted(self.statuses.items())),
                "kinds": dict(sorted(self.kinds.items())), "failures": self.failures}  # fmt: skip


class Client:
    """Sends bytes as they are, one connection for each request."""

    def __init__(self, url: str, counts: Counts) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        self.host, self.port, self.counts = place.hostname, place.port or 80, counts

    def send(self, kind: str, method: str, path: str, body: bytes, content_type: str | None) -> None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        headers = {} if content_type is None else {"Content-Type": content_type}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            self.judge(kind, answer.status, answer.read(), answer.headers.get("Content-Type") or "", body)
        except TimeoutError:
            self.counts.add(kind, "no answer")
            self.counts.fail(kind, f"no answer to {method} {path} in {PATIENCE:.0f} s", body)
        except (OSError, http.client.HTTPException) as error:
            self.counts.add(kind, "broken")
            self.counts.fail(kind, f"{type(error).__name__} for {method} {path}: {error}", body)
        finally:
            connection.close()

    def judge(self, kind: str, status: int, data: bytes, content_type: str, sent: object) -> None:
        self.counts.add(kind, str(status))
        if status >= 500:
            self.counts.fail(kind, f"status {status}: {data[:200]!r}", sent)
        elif kind == "good" and status not in (200, 429):
            self.counts.fail(kind, f"refused with {status}: {data[:200]!r}", sent)
        elif status >= 400 and not _is_openai_error(data):
            self.counts.fail(kind, f"an error of another shape, status {status}: {data[:200]!r}", sent)
        elif b'"server_error"' in data and "event-stream" in content_type:
            self.counts.fail(kind, f"an error within a stream: {data[:200]!r}", sent)

    def leave(self, kind: str, data: bytes, read: int) -> None:
        """Send something, read a little, and close the connection."""
        self.counts.add(kind, "left")
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(data)
            if read:
                connection.recv(read)


def _is_openai_error(data: bytes) -> bool:
    try:
        return set(json.loads(data)["error"]) == {"message", "type", "param", "code"}
    except (ValueError, TypeError, KeyError):
        return False


def by_hand(client: Client, chance: random.Random) -> None:
    """One request of a kind that is drawn."""
    path = chance.choice(PATHS)
    body = dict(GOOD[path])
    for name in chance.sample(FIELDS, chance.randint(1, 3)):
        body[name] = chance.choice(VALUES)
    written = json.dumps(body).encode()
    KINDS[chance.choice(list(KINDS))](client, chance, path, written)


def _fields(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    client.send("wrong fields", "POST", path, written, "application/json")


def _good(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    """Not bad at all: rows run beside what is refused."""
    options: tuple[dict[str, Any], ...] = (
        {"stream": True}, {"n": 3}, {"seed": 7, "temperature": 0.8}, {"stop": ["a", "e"]}, {"top_k": 5, "min_p": 0.1},
        {"frequency_penalty": 1.0}, {"logit_bias": {"70": 5}}, {"prediction": {"content": "the cat sat"}},
        {"speculation": {"draft": chance.choice(("none", "copy", "ngram", "auto")), "gamma": chance.randrange(5)}},
        {"response_format": {"type": "json_object"}} if path == CHAT else {"logprobs": 2},
    )  # fmt: skip
    body = dict(GOOD[path])
    for some in chance.sample(options, chance.randint(0, 3)):
        body |= some
    client.send("good", "POST", path, json.dumps(body).encode(), "application/json")


def _truncated(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    client.send("truncated", "POST", path, written[: chance.randrange(len(written))], "application/json")


def _nested(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    depth = chance.choice((50, 1_000, 20_000))
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    name = chance.choice((b"prompt", b"messages", b"metadata", b"tools", b"response_format"))
    deep = b'{"%b": %b1%b}' % (name, opening * depth, closing * depth)
    client.send("deep nesting", "POST", path, deep, "application/json")


def _bytes(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    client.send("random bytes", "POST", path, chance.randbytes(chance.randrange(200)), "application/json")


def _spoiled(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    place = chance.randrange(len(written))
    spoiled = written[:place] + chance.randbytes(1) + written[place + 1 :]
    client.send("a byte changed", "POST", path, spoiled, "application/json")


def _content_type(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    kinds = (None, "", "text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "a" * 999,
             "application/json; charset=utf-16", "application/xml")  # fmt: skip
    client.send("content types", "POST", path, written, chance.choice(kinds))


def _elsewhere(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    method = chance.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "POST"))
    paths = ("/", "/v1", "/v1/", path, f"{path}/", "/v1/models/..%2f..", "/v1/models/%00", "/%2e%2e/x", "/metrics",
             "/a?b", "/v1/outrider/theory", "/health")  # fmt: skip
    client.send("paths and methods", method, chance.choice(paths), written, "application/json")


def _leaving(client: Client, chance: random.Random, path: str, written: bytes) -> None:
    body = json.dumps({**GOOD[path], "max_tokens": 8, "stream": chance.random() < 0.5, "ignore_eos": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {client.host}\r\nContent-Type: application/json\r\n"
    data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    whole = chance.random() < 0.7
    client.leave("early disconnects", data if whole else data[: chance.randrange(len(data))], 1 if whole else 0)


KINDS: dict[str, Callable[[Client, random.Random, str, bytes], None]] = {
    "fields": _fields, "good": _good, "truncated": _truncated, "nested": _nested, "bytes": _bytes, "spoiled": _spoiled,
    "content type": _content_type, "elsewhere": _elsewhere, "leaving": _leaving,
}  # fmt: skip
