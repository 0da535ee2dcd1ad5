"""Run the app: loopback by default, drained on SIGTERM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

CONNECTIONS = 1024
"""Connections open at once, idle ones included; more are answered with 503."""


class DrainingServer(uvicorn.Server):
    """Told to stop by SIGTERM or Ctrl-C, it takes no more connections and lets answers end."""

    stopping: Callable[[], object] = staticmethod(lambda: None)  # called when it is told so for the first time

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        first = not self.should_exit
        super().handle_exit(sig, frame)
        if first:
            with contextlib.suppress(Exception, SystemExit):  # of a message that nobody can read any more
                self.stopping()


def make_server(app: FastAPI, host: str, port: int, drain: float = 60.0, access_log: bool = False) -> DrainingServer:
    return DrainingServer(
        uvicorn.Config(
            app, host=host, port=port, log_level="warning", access_log=access_log, limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=int(drain), timeout_keep_alive=10, server_header=False,
            h11_max_incomplete_event_size=64 << 10, http="h11", loop="asyncio",  # also where others are installed
        )
    )  # fmt: skip
