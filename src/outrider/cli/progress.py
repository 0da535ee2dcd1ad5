"""Progress on stderr while a model loads or reads a prompt; on a terminal only, never in a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from outrider.cli.common import notes


@contextmanager
def loading(target: str) -> Iterator[None]:
    """Over loading a model, which fetches, converts and compiles the first time."""
    with notes.status(f"loading {target}"):
        yield


def watched(chunks: Iterable[Any], tokens: int, shown: bool) -> Iterator[Any]:
    """The chunks of a stream. Until the first one: that the prompt is read; after it, where the text is not
    ``shown`` on the terminal as it comes, how many tokens there are."""
    status = notes.status(f"reading a prompt of {tokens:,} tokens")
    status.start()
    written = 0
    try:
        with closing(iter(chunks)) as stream:  # type: ignore[type-var]
            for chunk in stream:
                written += len(chunk.tokens)
                if shown:
                    status.stop()
                else:
                    status.update(f"{written:,} tokens")
                yield chunk
    finally:
        status.stop()


def on_terminal() -> bool:
    """Whether what is written to stdout is seen as it is written."""
    return sys.stdout is not None and sys.stdout.isatty()
