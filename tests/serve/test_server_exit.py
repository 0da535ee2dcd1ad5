"""A server that is told to stop, and cannot say so."""

from __future__ import annotations

import signal

import pytest
from fastapi import FastAPI

from outrider.serve.server import make_server


@pytest.mark.parametrize("error", [BrokenPipeError, SystemExit])
def test_a_message_that_cannot_be_written_does_not_keep_it_from_stopping(error: type[BaseException]) -> None:
    """Catches a message that is written first: with a closed stderr answers under way were aborted, not drained."""
    said = []

    def stopping() -> None:
        said.append(server.should_exit)
        raise error

    server = make_server(FastAPI(), "127.0.0.1", 0)
    server.stopping = stopping  # type: ignore[method-assign, assignment]
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit and not server.force_exit and said == [True]
    server.handle_exit(signal.SIGTERM, None)
    assert said == [True]
