"""Errors in the shape that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outrider.errors import BadOption, OutriderError
from outrider.serve.job import QueueFull, ServerStopping

RETRY_AFTER = "1"
"""Seconds after which a client that was turned away should try again."""


class Refused(OutriderError):
    """A request that gets this status and reason."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


def body(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body of an error. Whatever a client has sent, it is text that can be encoded."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    shown = message.encode("utf-8", "replace").decode("utf-8")
    return {"error": {"message": shown[:2000], "type": kind, "param": param, "code": code}}


def answer(
    message: str, status: int, param: str | None = None, code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:  # fmt: skip
    return JSONResponse(body(message, status, param, code), status, headers=headers)


def of_error(error: Exception) -> JSONResponse:
    """The answer to a request that raised."""
    if isinstance(error, Refused):
        return answer(str(error), error.status, error.param, error.code)
    if isinstance(error, QueueFull):
        return answer(str(error), 429, code="queue_full", headers={"Retry-After": RETRY_AFTER})
    if isinstance(error, ServerStopping):
        return answer(str(error), 503, code="stopping", headers={"Retry-After": RETRY_AFTER})
    if isinstance(error, BadOption):
        return answer(str(error), 400)
    return answer(f"{type(error).__name__}: {error}", 500)


def failed(error: Exception) -> JSONResponse:
    """The answer where the server is at fault; what went wrong is in its log."""
    return answer(f"an error of the server: {type(error).__name__}", 500)


def install(app: FastAPI) -> None:
    """Every error of the app goes out in that shape."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _invalid(error.errors())

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return answer(str(error.detail), error.status_code, headers=error.headers)

    @app.exception_handler(OutriderError)
    async def ours(request: Request, error: OutriderError) -> JSONResponse:
        return of_error(error)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        return failed(error)


def _invalid(errors: Sequence[Mapping[str, Any]]) -> JSONResponse:
    """The first thing that is wrong with a body; of a union, the alternative that came nearest is not known."""
    first = errors[0]
    place = [str(part) for part in first.get("loc", ()) if part != "body"]
    name = ".".join(part for part in place if not part.startswith(("constrained-", "function-")))
    if first.get("type") == "json_invalid":
        return answer("the body is not JSON", 400)
    if first.get("type") == "extra_forbidden":
        return answer(f"unknown field {name!r}; it is refused because it could change the answer", 400, name,
                      "unknown_parameter")  # fmt: skip
    if not name:
        return answer("the body must be a JSON object, sent as application/json", 400)
    return answer(f"{name}: {first.get('msg', 'is not valid')}", 400, place[0] if place else None)
