"""The HTTP API: completions, chat, models, health, metrics, and the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from outrider import __version__
from outrider.runtime import timer
from outrider.serve import refusal, server_state
from outrider.serve.engine import Engine
from outrider.serve.guard import Guard, key_owner
from outrider.serve.in_flight import EventStream, InFlight
from outrider.serve.job import Job
from outrider.serve.metrics import CountedAnswers, Metrics
from outrider.serve.parsing import RequestParser
from outrider.serve.responder import Responder
from outrider.serve.schema import ChatBody, CompletionBody
from outrider.serve.settings import ServerSettings

PAGE = Path(__file__).parent / "page"

STALL = 120.0
"""Seconds without a step, while requests run, after which the server calls itself unhealthy."""

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request cannot be honoured; the reason is in error.message."},
    401: {"description": "A valid API key is missing."},
    404: {"description": "The model is not served here."},
    408: {"description": "The answer took longer than this server allows."},
    413: {"description": "The body is too large."},
    429: {"description": "Too many requests wait; try again after Retry-After seconds."},
    500: {"description": "The model failed; other requests go on."},
    503: {"description": "The server is about to stop, or its engine has failed."},
}


def make_app(engine: Engine, settings: ServerSettings) -> FastAPI:
    """The app around an engine, which starts and drains with it."""
    metrics = Metrics(engine)
    engine.observe = metrics.add
    parser = RequestParser(
        engine.llm, settings.model, engine.limits.context, settings.most_tokens, engine.drafts, settings.gamma
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        engine.start()
        yield
        await run_in_threadpool(engine.drain, settings.patience)

    app = FastAPI(
        title="Outrider", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan,
    )  # fmt: skip
    refusal.install(app)
    _routes_of_state(app, engine, settings, metrics)

    async def generate(
        request: Request, body: CompletionBody | ChatBody, parse: Callable[[], Sequence[Job]]
    ) -> Response:  # fmt: skip
        began = timer.now()
        jobs = await run_in_threadpool(parse)
        owner = key_owner(request.headers.get("authorization", "")) if settings.keys else None
        requests = await run_in_threadpool(lambda: [engine.request(replace(job, owner=owner)) for job in jobs])
        in_flight = InFlight(engine, requests)
        prompts = sum(len(job.prompt) for job in jobs) // (body.n or 1)
        metrics.prompt_tokens.inc(prompts)
        responder = Responder(in_flight, body, settings, engine, prompts, len(jobs), began, metrics)
        if body.stream:
            return EventStream(responder.stream(), settings.patience, in_flight.cancel)
        try:
            return await _unless_gone(request, responder.whole())
        finally:
            in_flight.cancel()

    @app.post("/v1/completions", responses=ERRORS)
    async def completions(request: Request, body: CompletionBody) -> Response:
        """Continue a text."""
        return await generate(request, body, lambda: parser.completion(body))

    @app.post("/v1/chat/completions", responses=ERRORS)
    async def chat(request: Request, body: ChatBody) -> Response:
        """Answer a conversation."""
        return await generate(request, body, lambda: parser.chat(body))

    _serve_page(app)
    _wrap(app, settings, metrics)
    return app


def _serve_page(app: FastAPI) -> None:
    """A route for every file of the page: no path of a request reaches the file system, and every other one is 404."""
    for file in sorted(PAGE.rglob("*")):
        if file.is_file():
            name = file.relative_to(PAGE).as_posix()
            for path in ("/", "/index.html") if name == "index.html" else (f"/{name}",):
                app.router.routes.append(Route(path, _sender(file), methods=["GET"]))


def _sender(file: Path) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def send(request: Request) -> Response:
        return FileResponse(file)

    return send


def _wrap(app: FastAPI, settings: ServerSettings, metrics: Metrics) -> None:
    """The middleware: the last that is added sees a request first."""
    app.add_middleware(CountedAnswers, metrics=metrics)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )  # fmt: skip
    app.add_middleware(Guard, keys=settings.keys, most_bytes=settings.most_bytes, hosts=settings.hosts)


def _routes_of_state(app: FastAPI, engine: Engine, settings: ServerSettings, metrics: Metrics) -> None:
    """Everything that generates nothing."""
    made = int(time.time())
    entry = {"id": settings.model, "object": "model", "created": made, "owned_by": "outrider",
             "max_model_len": engine.limits.context}  # fmt: skip

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [entry]}

    @app.get("/v1/models/{name:path}", responses={404: ERRORS[404]})
    async def model(name: str) -> Response:
        if name != settings.model:
            return refusal.answer(f"the model {name!r} is not served here", 404, "model", "model_not_found")
        return JSONResponse(entry)

    @app.get("/health", responses={503: ERRORS[503]})
    async def health() -> Response:
        """200 while steps go on."""
        if engine.failure is not None:
            return refusal.answer(engine.failure, 503)
        if engine.stalled(STALL):
            return refusal.answer(f"no step has ended for {STALL:.0f} s while requests run", 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def prometheus() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/outrider/status")
    async def status() -> dict[str, Any]:
        """What runs, how fast, and how well guesses do."""
        return server_state.status(engine, settings.model)

    @app.get("/v1/outrider/theory")
    async def theory() -> dict[str, Any]:
        """The theory's curves, and where this server stands on them."""
        return server_state.theory(engine)


async def _unless_gone(request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
    """The answer, unless the client goes away first: then the work for it ends."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return Response(status_code=499)
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
