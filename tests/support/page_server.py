"""A server for tests of the page: its files, and scripted answers in the form of the real one, faults included."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "src" / "outrider" / "serve" / "page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none'"

STEPS: list[tuple[list[str], int, str]] = [
    ([], 0, "The"),
    ([" quick", " brown", " dog"], 2, " fox"),
    ([" jumps", " over"], 2, " the"),
    ([" lazy", " cat", "\n", "!"], 1, " dog"),
    ([".\n", "Caf"], 2, "\ufffd"),
    ([], 0, "\ufffd"),
    ([" au", " lait"], 2, "<|end|>"),
]
"""Guesses, how many of them are kept, and the target's own token; the letter é takes two tokens."""

TEXTS = ["The", " quick brown fox", " jumps over the", " lazy dog", ".\nCaf", "é", " au lait"]
"""What each step adds to the text."""

STATUS = {
    "model": "a-model", "draft": "a-draft", "engine": "numba", "dtype": "float32", "slots": 4, "running": 1,
    "waiting": 0, "alpha": 0.7, "c": 0.05, "gamma": 3.2, "tokens_per_second": 41.0,
}  # fmt: skip


def theory() -> dict[str, Any]:
    gammas = list(range(9))
    curves = [
        {"alpha": alpha, "gamma": gammas,
         "speedup": [sum(alpha**i for i in range(gamma + 1)) / (1 + 0.05 * gamma) for gamma in gammas]}
        for alpha in (0.5, 0.6, 0.7, 0.8, 0.9)
    ]  # fmt: skip
    return {"curves": curves, "here": {"alpha": 0.7, "c": 0.05, "gamma": 3.2, "speedup": 2.2}}


def _token(text: str, **more: str) -> dict[str, Any]:
    return {"id": sum(text.encode()), "text": text, **more}


def chunks(chat: bool, speculating: bool) -> Iterator[dict[str, Any]]:
    """The chunks of one answer. The plain run has a step for each token of the same text."""
    index = 0
    for (drafted, accepted, own), text in zip(STEPS, TEXTS, strict=True):
        origin = "plain" if not drafted else "bonus" if accepted == len(drafted) else "corrected"
        kept = [_token(word, origin="accepted") for word in drafted[:accepted]]
        tokens = [*kept, _token(own, origin=origin)]
        steps = [tokens] if speculating else [[{**token, "origin": "plain"}] for token in tokens]
        for number, emitted in enumerate(steps):
            said = text if number == len(steps) - 1 else ""
            step = {
                "index": index, "gamma": max(len(drafted), 2) if speculating else 0,
                "accepted": accepted if speculating else 0,
                "drafted": [_token(word) for word in drafted] if speculating else [], "seconds": 0.02,
                "why": f"{len(drafted)} guesses: the fourth would cost more than it brings" if speculating else "off",
            }  # fmt: skip
            entry = {"delta": {"content": said}} if chat else {"text": said}
            yield {
                "choices": [{"index": 0, **entry, "finish_reason": None}],
                "outrider": {"tokens": emitted, "step": step},
            }
            index += 1
    last = {"delta": {}} if chat else {"text": ""}
    yield {"choices": [{"index": 0, **last, "finish_reason": "stop"}]}


class StandIn:
    """What the server does is set by ``mode``: answer, hold, full, refuse, key, break, fail or noise."""

    def __init__(self) -> None:
        self.mode = "answer"
        self.bodies: list[dict[str, Any]] = []
        self.release = threading.Event()  # lets an answer in mode hold go on
        self.gone = threading.Event()  # the client has left during an answer
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand_in.get(self)

            def do_POST(self) -> None:
                stand_in.post(self)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.release.set()
        self.http.shutdown()
        self.http.server_close()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        known = {"/v1/outrider/status": STATUS, "/v1/outrider/theory": theory()}
        if handler.path in known:
            send(handler, 200, json.dumps(known[handler.path]).encode(), "application/json")
            return
        file = PAGE / ("index.html" if handler.path == "/" else handler.path.lstrip("/"))
        if file.parent == PAGE and file.is_file():
            send(handler, 200, file.read_bytes(), TYPES[file.suffix])
        else:
            send(handler, 404, b"", "text/plain")

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.bodies.append(body)
        refused = {"full": 429, "refuse": 400}.get(self.mode)
        if self.mode == "key" and handler.headers["Authorization"] != "Bearer let-me-in":
            refused = 401
        if refused:
            reason = {"error": {"message": f"the reason for {refused}", "type": "invalid_request_error"}}
            send(handler, refused, json.dumps(reason).encode(), "application/json", {"Retry-After": "7"})
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        try:
            self._stream(handler, body)
        except OSError:
            self.gone.set()

    def _stream(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        for number, chunk in enumerate(chunks("messages" in body, body["speculation"]["enabled"])):
            if number == 4 and self.mode == "break":
                return
            if number == 4 and self.mode == "fail":
                chunk = {"error": {"message": "the logits are not numbers"}}
            if number == 4 and self.mode == "noise":
                write(handler, "data: {half\n\n")
            while number == 4 and self.mode == "hold" and not self.release.wait(0.02):
                write(handler, ": waiting\n\n")
            write(handler, f"data: {json.dumps(chunk)}\n\n")
        write(handler, "data: [DONE]\n\n")


def write(handler: BaseHTTPRequestHandler, text: str) -> None:
    handler.wfile.write(text.encode())
    handler.wfile.flush()


def send(
    handler: BaseHTTPRequestHandler, code: int, data: bytes, kind: str, headers: dict[str, str] | None = None
) -> None:
    handler.send_response(code)
    common = {"Content-Type": kind, "Content-Length": str(len(data)), "Content-Security-Policy": POLICY}
    for name, value in {**common, **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


@contextmanager
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    try:
        yield server
    finally:
        server.close()
