"""What every request passes first: the size of its body, its API key; and the headers that every answer carries."""

from __future__ import annotations

import hashlib
import hmac
from asyncio import timeout
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.serve import refusal

WITHOUT_KEY = ("/health",)
"""Paths that need no key, beside the page and its files: load balancers have none."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


TOO_LARGE = "the body is larger than the {} bytes that this server takes; send less, or raise --max-bytes"


_DISCARDED, _DISCARDED_SECONDS = 2**24, 5.0
"""Bytes that are read and forgotten behind a refusal, at most, and for how long: who sends more is cut off."""


async def _discard(receive: Receive) -> None:
    """Read what a client is still sending: a connection closed on unread bytes is reset, and the answer is lost."""
    left = _DISCARDED
    with suppress(TimeoutError):
        async with timeout(_DISCARDED_SECONDS):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))


class BodyTooLarge(HTTPException):
    """More bytes have come than a body may have, without a Content-Length that said so.

    An HTTPException, since FastAPI answers 400 to whatever else goes wrong while it reads a body.
    """

    def __init__(self, most: int) -> None:
        super().__init__(413, TOO_LARGE.format(most), {"Connection": "close"})


class Guard:
    """Wraps the app. Keys are compared in constant time and are never logged."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], most_bytes: int, hosts: Sequence[str] = ()) -> None:
        """``hosts``: names the server may be addressed by, against DNS rebinding; none: any."""
        self.app, self.most_bytes, self.hosts = app, most_bytes, tuple(hosts)
        self.keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        if (refused := self._refuse(scope["path"], headers)) is not None:
            await _discard(receive)
            await refused(scope, receive, sending)
            return
        await self.app(scope, self._counting(receive), sending)

    def _refuse(self, path: str, headers: Headers) -> Any:
        if self.hosts and _name(headers.get("host", "")) not in self.hosts:
            return refusal.answer("the Host header names another server", 403)
        if not self._admitted(path, headers.get("authorization", "")):
            return refusal.answer(
                "a valid API key is missing; send it as 'Authorization: Bearer KEY'", 401, code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:19]) > self.most_bytes:
            return refusal.answer(TOO_LARGE.format(self.most_bytes), 413, headers={"Connection": "close"})
        return None

    def _admitted(self, path: str, given: str) -> bool:
        """Whether a request may pass: the API and the metrics need a key where there are any."""
        if not self.keys or path in WITHOUT_KEY or not path.startswith(("/v1/", "/metrics", "/openapi")):
            return True
        kind, key = _bearer(given)
        matches = [hmac.compare_digest(key.encode(), known) for known in self.keys]  # all of them, always
        return kind == "bearer" and any(matches)

    def _counting(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self.most_bytes:
                    if message.get("more_body"):
                        await _discard(receive)
                    raise BodyTooLarge(self.most_bytes)
            return message

        return counted


def _name(host: str) -> str:
    """The name in a Host header, without the port: localhost:8000, [::1]:8000."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def _bearer(authorization: str) -> tuple[str, str]:
    """The kind of an Authorization header, and the key in it."""
    kind, _, key = authorization.partition(" ")
    return kind.lower(), key.strip()


def key_owner(authorization: str) -> str:
    """Who sent a request that was admitted: a name for the holder of its key, from which the key cannot be told."""
    return hashlib.sha256(_bearer(authorization)[1].encode()).hexdigest()
