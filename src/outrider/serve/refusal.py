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
from outrider.serve.schema import UNIONS, SpeculationOptions

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
    named = None if param is None else _encodable(param)[:200]
    return {"error": {"message": _encodable(message)[:2000], "type": kind, "param": named, "code": code}}


def _encodable(text: str) -> str:
    """Lone surrogates of a body become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


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
        return _invalid(error.errors(), error.body)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return answer(_said(request, error), error.status_code, headers=error.headers)

    @app.exception_handler(OutriderError)
    async def ours(request: Request, error: OutriderError) -> JSONResponse:
        return of_error(error)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        return failed(error)


def _said(request: Request, error: HTTPException) -> str:
    """What went wrong with a request, where the framework gives the name of the status only."""
    method, path = request.method, request.url.path
    if error.status_code == 404:
        return f"there is nothing at {path}; the API is under /v1, for instance POST /v1/chat/completions"
    if error.status_code == 405:
        return f"{path} does not take {method}; use {(error.headers or {}).get('Allow', 'another method')}"
    return str(error.detail)


def _invalid(errors: Sequence[Mapping[str, Any]], sent: Any) -> JSONResponse:
    """The first thing that is wrong with a body: the field, the rule, and what was sent."""
    first = errors[0]
    kind, place = first.get("type"), [part for part in first.get("loc", ()) if part != "body"]
    if kind == "json_invalid":
        return answer("the body is not JSON; send a JSON object", 400)
    if not place and kind != "string_unicode":
        return answer("the body must be a JSON object, sent as application/json", 400)
    field = _field(place, sent) if place else ["a field's name"]
    name, param = ".".join(map(str, field)), str(field[0])
    if kind == "string_unicode":
        return answer(f"{name} must be Unicode, got {_shown(first.get('input'))}; it has half of a surrogate pair", 400,
                      param if place else None)  # fmt: skip
    if kind == "extra_forbidden":
        remedy = "it is refused because it could change the answer, leave it out"
        if name in SpeculationOptions.model_fields:
            remedy = f"put it under 'speculation': {{'speculation': {{{name!r}: ...}}}}"
        return answer(f"unknown field {name!r}; {remedy}", 400, name, "unknown_parameter")
    if kind == "missing":
        return answer(f"{name} is missing; it is required", 400, param, "missing_required_parameter")
    if (rule := UNIONS.get(".".join(str(part) for part in field if not isinstance(part, int)))) is not None:
        return answer(f"{name} must be {rule}, got {_shown(_at(field, sent))}", 400, param)
    return answer(f"{name}: {first.get('msg', 'is not valid')}, got {_shown(first.get('input'))}", 400, param)


def _field(place: Sequence[str | int], sent: Any) -> list[str | int]:
    """The part of an error's place that leads to a field of the body; behind it come names of alternatives."""
    field: list[str | int] = []
    for part in place:
        inside = part in sent if isinstance(sent, dict) else isinstance(sent, list) and isinstance(part, int)
        if not inside:
            return [*field, part] if isinstance(sent, dict) or not field else field
        field, sent = [*field, part], sent[part]
        if ".".join(str(one) for one in field if not isinstance(one, int)) in UNIONS:
            return field
    return field


def _at(field: Sequence[str | int], sent: Any) -> Any:
    for part in field:
        sent = sent[part]
    return sent


def _shown(value: Any) -> str:
    """A value as it was sent, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
