"""Counters and gauges for Prometheus: this server's own, and vLLM's names that dashboards know."""

from __future__ import annotations

import logging
import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.decoding.request import Event
from outrider.serve import refusal
from outrider.serve.engine import Engine

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """Written by the engine's thread and by the app, read at ``/metrics``."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self.requests = counter("outrider_requests", "Requests answered, by path and status.", ("path", "status"))
        self.prompt_tokens = counter("outrider_prompt_tokens", "Tokens of prompts.")
        self.generated = counter("outrider_generated_tokens", "Tokens generated.")
        self.finished = counter("outrider_finished", "Texts that ended, by reason.", ("reason",))
        self.first = Histogram("outrider_time_to_first_token_seconds", "From the request to its first tokens.",
                               buckets=SECONDS, registry=self.registry)  # fmt: skip
        self.whole = Histogram("outrider_request_seconds", "From the request to the end of its answer.",
                               buckets=SECONDS, registry=self.registry)  # fmt: skip
        self.steps = Histogram("outrider_step_seconds", "Duration of a step, as each of its rows saw it.",
                               buckets=(0.0005, 0.001, 0.002, *SECONDS), registry=self.registry)  # fmt: skip
        self.drafts = counter("vllm:spec_decode_num_drafts", "Steps of a row with guesses.")
        self.draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Guesses made.")
        self.accepted = counter("vllm:spec_decode_num_accepted_tokens", "Guesses accepted.")
        self.by_position = counter("vllm:spec_decode_num_accepted_tokens_per_pos", "Guesses accepted, by position.",
                                   ("position",))  # fmt: skip
        self._gauge("vllm:num_requests_running", "Requests in a slot.", lambda: engine.running)
        self._gauge("vllm:num_requests_waiting", "Requests that wait for a slot.", lambda: engine.waiting)
        self._gauge("outrider_slots", "Slots there are.", lambda: engine.limits.slots)
        self._gauge("outrider_drafter_failures", "Times the drafter has failed.", lambda: engine.drafter_failures)
        self._gauge("outrider_acceptance_rate", "Guesses accepted over guesses examined, lately; NaN: none yet.",
                    lambda: math.nan if (alpha := engine.observed.alpha) is None else alpha)  # fmt: skip
        self._gauge("outrider_tokens_per_second", "Tokens generated per second, lately.",
                    lambda: engine.observed.tokens_per_second)  # fmt: skip

    def _gauge(self, name: str, text: str, read: object) -> None:
        Gauge(name, text, registry=self.registry).set_function(read)  # type: ignore[arg-type]

    def add(self, event: Event) -> None:
        """A step of a row, in the engine's thread."""
        self.generated.inc(len(event.tokens))
        if event.row.finish_reason is not None:
            self.finished.labels(event.row.finish_reason).inc()
        if event.record is None:
            return
        self.steps.observe(event.seconds)
        if event.record.drafted:
            self.drafts.inc()
            self.draft_tokens.inc(len(event.record.drafted))
            self.accepted.inc(event.accepted)
            for place in range(event.accepted):
                self.by_position.labels(str(place)).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class CountedAnswers:
    """Middleware that counts answers by route and status, and answers 500 where the app has raised.

    Plain ASGI: Starlette's BaseHTTPMiddleware wraps what is raised while a body is read, and FastAPI answers that with
    400 whatever it was.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status: int | None = None

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:
            if status is not None:  # too late for another answer: the connection is closed
                raise
            logging.getLogger("uvicorn.error").exception("a request failed")
            await refusal.failed(error)(scope, receive, sending)
        finally:
            route = scope.get("route")  # never the path itself: clients choose those, and every one would be kept
            self.metrics.requests.labels("other" if route is None else route.path, str(status)).inc()
