"""Concurrent clients against a server, each with one request at a time: what they saw, and whether load changed it."""

from __future__ import annotations

import itertools
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.bench.serving.client import Address, Answer, Requests, ask
from outrider.bench.serving.process import held_when_idle, resident_bytes
from outrider.errors import require
from outrider.runtime import timer

MOST_WAITING = 5.0
"""Seconds that a client waits at most before it sends the next request after a 429."""

Say = Callable[[str], object]


@dataclass(frozen=True)
class Load:
    """How many clients, and until when: so many seconds, so many requests, or what comes first."""

    clients: int
    seconds: float | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"clients must be at least 1, got {self.clients}")
        require(self.seconds is None or self.seconds > 0, f"seconds must be above 0, got {self.seconds}")
        require(self.requests is None or self.requests >= 1, f"requests must be at least 1, got {self.requests}")
        ends = self.seconds is not None or self.requests is not None
        require(ends, "a load needs an end: give seconds or requests")


@dataclass
class LoadRun:
    """What a load gave. After Ctrl-C: the answers until then."""

    load: Load
    answers: list[Answer] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)  # bytes of the server, once a second
    began: float = field(default_factory=timer.now)
    interrupted: bool = False

    @property
    def complete(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.complete]

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.complete)

    @property
    def seconds(self) -> float:
        """Up to the end of the last answer."""
        return max((answer.ended for answer in self.answers), default=self.began) - self.began


class Clients:
    """Threads that each send a request, read its answer and send the next."""

    def __init__(self, address: Address, requests: Requests, load: Load) -> None:
        self.address, self.requests, self.load = address, requests, load
        self.run, self._stop = LoadRun(load), threading.Event()
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def measure(self, say: Say, pid: int | None = None) -> LoadRun:
        """Until the load's end or Ctrl-C."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self.load.clients)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                self._watch(say, pid)
                _join(threads, 1.0)
        except KeyboardInterrupt:
            self.run.interrupted = True
            self._stop.set()
            _join(threads, MOST_WAITING)
        return self.run

    def _work(self) -> None:
        while (number := self._next()) is not None:
            answer = ask(self.address, self.requests, number, self._stop)
            if answer is not None:
                self.run.answers.append(answer)
                if answer.status in ("429", "503", "connection"):
                    self._stop.wait(min(max(answer.retry_after, 0.05), MOST_WAITING))

    def _next(self) -> int | None:
        """The number of the next request; None: there is none."""
        load = self.load
        late = load.seconds is not None and timer.now() - self.run.began > load.seconds
        with self._lock:
            number = next(self._numbers)
        return None if late or self._stop.is_set() or number >= (load.requests or 2**63) else number

    def _watch(self, say: Say, pid: int | None) -> None:
        if pid is not None and (size := resident_bytes(pid)) is not None:
            self.run.resident.append(size)
        answers = list(self.run.answers)
        spent, failed = timer.now() - self.run.began, sum(not answer.complete for answer in answers)
        of = "" if self.load.seconds is None else f" of {self.load.seconds:.0f}"
        count = "" if self.load.requests is None else f" of {self.load.requests}"
        say(f"{self.load.clients} clients, {spent:.0f}{of} s: {len(answers) - failed}{count} answers, {failed} refused")


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    end = timer.now() + seconds
    for thread in threads:
        thread.join(max(0.0, end - timer.now()))


def figures(runs: Sequence[LoadRun]) -> dict[str, Any]:
    """Runs of one load together: totals over totals, and percentiles over all of their requests."""
    answers = [answer for run in runs for answer in run.complete]
    every = [answer for run in runs for answer in run.answers]
    seconds, tokens = sum(run.seconds for run in runs), sum(run.tokens for run in runs)
    gaps = [b - a for answer in answers for a, b in itertools.pairwise(answer.arrivals)]
    return {
        "clients": runs[0].load.clients,
        "seconds": seconds,
        "answers": len(answers),
        "tokens": tokens,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "requests_per_second": len(answers) / seconds if seconds else 0.0,
        "refused_429": sum(answer.status == "429" for answer in every),
        "errors": dict(Counter(answer.status for answer in every if not answer.complete and answer.status != "429")),
        "first_error": next((a.error for a in every if not a.complete and a.status != "429"), None),
        "first_token": percentiles([answer.arrivals[0] - answer.began for answer in answers if answer.arrivals]),
        "per_token": percentiles([one for answer in answers if (one := answer.per_token) is not None]),
        "between_chunks": percentiles(gaps),
        "whole": percentiles([answer.ended - answer.began for answer in answers]),
    }


def percentiles(values: Sequence[float]) -> dict[str, Any]:
    """In seconds, with how many there are; None of nothing."""
    if len(values) < 2:
        only = values[0] if values else None
        return {"p50": only, "p95": only, "n": len(values)}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "n": len(values)}


def same_alone(address: Address, requests: Requests, answers: Sequence[Answer], say: Say) -> dict[str, Any]:
    """Whether answers under load are those of the same requests sent alone. After Ctrl-C: as far as it came."""
    compared, interrupted = 0, False
    differ: list[int] = []
    try:
        for place, answer in enumerate(answers):
            say(f"the same requests alone: {place} of {len(answers)}, {len(differ)} differ")
            alone = ask(address, requests, answer.number, threading.Event())
            assert alone is not None
            compared += 1
            if (alone.text, alone.reason, alone.tokens) != (answer.text, answer.reason, answer.tokens):
                differ.append(answer.number)
    except KeyboardInterrupt:
        interrupted = True
    return {"compared": compared, "same": compared - len(differ), "differ": differ, "interrupted": interrupted}


def measure_load(
    address: Address, requests: Requests, load: Load, say: Say, checked: int | None = None, pid: int | None = None
) -> dict[str, Any]:
    """One load: before it a round over the prompts, which is not counted; behind it what the server has kept, and
    ``checked`` answers (None: all) compared with the same requests alone."""
    warm = Clients(address, requests, Load(min(load.clients, 8), requests=len(requests.prompts))).measure(say)
    before = None if pid is None else resident_bytes(pid)
    run = warm if warm.interrupted else Clients(address, requests, load).measure(say, pid)
    held, after = held_when_idle(address), None if pid is None else resident_bytes(pid)
    found = figures([run]) | {"held": held, "interrupted": run.interrupted}
    if before is not None and after is not None:
        seen = [before, *run.resident, after]
        found["resident_bytes"] = {
            "before": before, "half_way": seen[len(seen) // 2], "most": max(seen), "after": after,
        }  # fmt: skip
    answered = sorted(run.complete, key=lambda answer: answer.number)
    some = answered if checked is None else answered[:: max(1, len(answered) // max(1, checked))][:checked]
    if some and not run.interrupted:
        found["alone"] = same_alone(address, requests, some, say)
        found["interrupted"] = found["alone"].pop("interrupted")
    return found
