"""One request's answer, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import JSONResponse, Response

from outrider.decoding.fault import NO_CHOICE
from outrider.runtime import timer
from outrider.serve import refusal
from outrider.serve.chat import tool_calls
from outrider.serve.engine import Engine
from outrider.serve.in_flight import InFlight
from outrider.serve.job import StepProgress
from outrider.serve.metrics import Metrics
from outrider.serve.response_bodies import Choice, ResponseBodies, traced, usage
from outrider.serve.schema import ChatBody, CompletionBody
from outrider.serve.settings import ServerSettings

DONE = "data: [DONE]\n\n"
TOO_LONG = "the answer took longer than the {:.0f} s this server allows; ask for fewer tokens"
FAILED = {"cancelled": (503, "the server has stopped before the answer was complete")}


@dataclass
class Responder:
    """Collects what the engine delivers and says it in the form the client asked for."""

    in_flight: InFlight
    body: CompletionBody | ChatBody
    settings: ServerSettings
    engine: Engine
    prompt_tokens: int
    count: int  # choices
    began: float
    metrics: Metrics
    choices: list[Choice] = field(init=False)

    def __post_init__(self) -> None:
        self.choices = [Choice(index, self.engine.llm.show) for index in range(self.count)]
        self.bodies = ResponseBodies(self.settings.model, isinstance(self.body, ChatBody))
        self.tools = isinstance(self.body, ChatBody) and bool(self.body.tools) and self.body.tool_choice != "none"
        self._first = True

    async def whole(self) -> Response:
        """One JSON object."""
        try:
            async with asyncio.timeout(self.settings.seconds):
                async for index, progress in self.in_flight.progress():
                    self._take(index, progress)
                    if (failed := _failure(progress)) is not None:
                        return refusal.answer(failed[1], failed[0])
        except TimeoutError:
            return refusal.answer(TOO_LONG.format(self.settings.seconds), 408, code="timeout")
        self.metrics.whole.observe(timer.now() - self.began)
        calls = [tool_calls(choice.text) if self.tools else [] for choice in self.choices]
        return JSONResponse(self.bodies.whole(self.choices, self.prompt_tokens, calls))

    async def stream(self) -> AsyncGenerator[str]:
        """Server-sent events: a chunk for every step of every choice."""
        for choice in self.choices:
            if (opening := self.bodies.opening(choice.index)) is not None:
                yield _event(opening)
        try:
            async with asyncio.timeout(self.settings.seconds):
                async for index, progress in self.in_flight.progress():
                    choice = self._take(index, progress)
                    if (failed := _failure(progress)) is not None:
                        yield _event(refusal.body(failed[1], failed[0]))
                        yield DONE
                        return
                    yield _event(self._chunk(choice, progress))
        except TimeoutError:
            yield _event(refusal.body(TOO_LONG.format(self.settings.seconds), 408, code="timeout"))
            yield DONE
            return
        self.metrics.whole.observe(timer.now() - self.began)
        options = self.body.stream_options
        if options is not None and options.include_usage:
            yield _event(self.bodies.closing(self.choices, self.prompt_tokens))
        yield DONE

    def _take(self, index: int, progress: StepProgress) -> Choice:
        if self._first and progress.tokens:
            self._first = False
            self.metrics.first.observe(timer.now() - self.began)
        choice = self.choices[index]
        choice.add(progress)
        return choice

    def _chunk(self, choice: Choice, progress: StepProgress) -> dict[str, Any]:
        chunk = self.bodies.chunk(choice, progress)
        speculation, options = self.body.speculation, self.body.stream_options
        if options is not None and options.include_usage and options.continuous_usage_stats:
            chunk["usage"] = usage(self.prompt_tokens, self.choices)
        if self.tools:
            self._hold_back(chunk["choices"][0], choice)
        if speculation is not None and speculation.trace:
            chunk["outrider"] = traced(progress, choice.steps - 1, self.engine.llm.show, self._why())
        return chunk

    def _hold_back(self, entry: dict[str, Any], choice: Choice) -> None:
        """Where tools may be called no text is shown before it is known whether it is a call."""
        entry["delta"] = {}
        if choice.finish_reason is None:
            return
        if calls := tool_calls(choice.text):
            entry["delta"] = {"tool_calls": [{"index": place, **call} for place, call in enumerate(calls)]}
            entry["finish_reason"] = "tool_calls"
        else:
            entry["delta"] = {"content": choice.text}

    def _why(self) -> str:
        """Why gamma is what it is."""
        asked = self.body.speculation
        if asked is not None and (not asked.enabled or asked.draft == "none"):
            return "speculation is off for this request"
        if asked is not None and isinstance(asked.gamma, int):
            return "asked for by the request"
        if self.body.prediction is not None:
            return "follows the prediction"
        alpha = self.engine.observed.alpha
        seen = "nothing measured yet" if alpha is None else f"{alpha:.0%} of guesses accepted lately"
        return f"planned for {max(1, self.engine.running)} running: {seen}"


def _failure(progress: StepProgress) -> tuple[int, str] | None:
    if progress.finish_reason == "error":
        reason = progress.error or "the model failed"
        return 400 if reason.startswith(NO_CHOICE) else 500, reason
    return FAILED.get(progress.finish_reason or "")


def _event(data: Any) -> str:
    return f"data: {json.dumps(data, allow_nan=False)}\n\n"
