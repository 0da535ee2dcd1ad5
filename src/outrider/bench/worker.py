"""One engine of a comparison as a script that answers JSON lines; runs under any engine's own Python.

Reads a request a line and answers with a line. ``load`` comes first: engine, model, dtype, threads, ways of decoding,
draft. Then ``generate``: way, prompt ids, how many tokens, temperature, seed. The end of the input is the end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from typing import Any

if __package__:
    from outrider.bench.worker_engines import ENGINES, ComparedEngine, Request
else:  # a script under a Python that need not have Outrider
    from worker_engines import ENGINES, ComparedEngine, Request  # type: ignore[import-not-found, no-redef]


class TextTimes:
    """When tokens of a text came, by our clock, and what the engine says by its own."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.first: Request = {}
        self.own: Request = {}

    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def heard(self, count: int) -> None:
        if not self.first:
            self.first = {"first_tokens": count, "first_seconds": self.seconds()}

    def said(self, prefill_seconds: float, decode_seconds: float) -> None:
        self.first = {"first_tokens": 1, "first_seconds": prefill_seconds}
        self.own = {"decode_seconds": decode_seconds}


def loaded(request: Request) -> tuple[ComparedEngine, Request]:
    began = time.perf_counter()
    engine = ENGINES[request["engine"]](request)
    about = {"version": engine.version, "dtype": engine.dtype, "notes": engine.notes}
    return engine, about | {"seconds": time.perf_counter() - began}


def generated(engine: ComparedEngine, request: Request) -> Request:
    """Tokens; the seconds they took; how many came first, and when; the seconds of the others, where it says them."""
    watch = TextTimes()
    tokens = engine.generate(request, watch)
    if not watch.first:
        raise ValueError("gave no tokens")
    return {"tokens": tokens, "seconds": watch.seconds(), **watch.first, **watch.own}


def serve(requests: Any, answers: Any) -> None:
    engine: Any = None
    for line in requests:
        request = json.loads(line)
        try:
            if request["do"] == "load":
                engine, answer = loaded(request)
            else:
                answer = generated(engine, request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def leave_with(parent: int) -> None:
    """End when the process that asks has ended, even in the middle of a text."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    sys.path.pop(0)  # the folder of this script, whose other files are nobody's modules here
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # engines print what they like; answers go where nothing else does
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
