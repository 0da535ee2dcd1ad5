"""A request's texts while they are generated: between the engine's thread and the event loop of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from outrider.decoding.request import Request
from outrider.serve.engine import Engine
from outrider.serve.job import StepProgress


class InFlight:
    """Jobs of one HTTP request under way. Leave it with ``cancel``: slots of texts that have not ended are freed."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.engine, self.left = engine, len(requests)
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[tuple[int, StepProgress]] = asyncio.Queue()
        self._numbers = engine.submit(requests, [partial(self._put, index) for index in range(len(requests))])

    def _put(self, index: int, progress: StepProgress) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, (index, progress))

    async def progress(self) -> AsyncGenerator[tuple[int, StepProgress]]:
        """What happens to each text, by its place, until all have ended."""
        while self.left:
            index, progress = await self._arrived.get()
            self.left -= progress.finish_reason is not None
            yield index, progress

    def cancel(self) -> None:
        if self.left:
            self.engine.cancel(self._numbers)


class EventStream(StreamingResponse):
    """Server-sent events. A client that takes nothing for ``patience`` seconds is let go."""

    def __init__(self, events: AsyncGenerator[str], patience: float, closed: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self.patience, self.closed = patience, closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def timed(message: Message) -> None:
            async with asyncio.timeout(self.patience):
                await send(message)

        try:
            await super().__call__(scope, receive, timed)
        finally:
            self.closed()
