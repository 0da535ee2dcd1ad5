"""Things that go wrong: others go on, slots come back, and nobody who was accepted is left without an answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.core.protocols import Draft, Session, Shape
from outrider.drafters import Copying
from outrider.llm import LLM
from outrider.models.cached_session import CachedSession
from outrider.options import Options
from outrider.serve.engine import Engine, Limits
from outrider.serve.job import Job, QueueFull, ServerStopping, StepProgress
from serving import PATIENCE, Served, eventually, serving

LONG = {"prompt": "the cat", "max_tokens": 90, "temperature": 0, "ignore_eos": True}


class Collected:
    """What an engine delivers for one job."""

    def __init__(self) -> None:
        self.parts: list[StepProgress] = []
        self.ended = threading.Event()

    def __call__(self, progress: StepProgress) -> None:
        self.parts.append(progress)
        if progress.finish_reason is not None:
            self.ended.set()

    @property
    def text(self) -> str:
        assert self.ended.wait(PATIENCE)
        return "".join(part.text for part in self.parts)

    @property
    def reason(self) -> str | None:
        assert self.ended.wait(PATIENCE)
        return self.parts[-1].finish_reason


def job(llm: LLM, prompt: str = "the cat", tokens: int = 30, **options: Any) -> Job:
    return Job(llm.encode(prompt), Options(max_new_tokens=tokens, coupling="gumbel", eos=(), **options), seed=5)


def submit(engine: Engine, *jobs: Job) -> tuple[list[int], list[Collected]]:
    heard = [Collected() for _ in jobs]
    return engine.submit([engine.request(one) for one in jobs], heard), heard


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Callable[[LLM, Limits], Engine]:
    def start(llm: LLM, limits: Limits) -> Engine:
        engine = Engine(llm, limits)
        engine.start()
        request.addfinalizer(lambda: engine.drain(PATIENCE))
        return engine

    return start


Start = Callable[[LLM, Limits], Engine]


def test_a_cancelled_request_leaves_its_slot_and_others_go_on(llm: LLM, started: Start) -> None:
    engine = started(llm, Limits(slots=1, context=120, waiting=8))
    numbers, heard = submit(engine, job(llm, tokens=90), job(llm, "a dog", 90), job(llm, "a cow"))
    assert eventually(lambda: heard[0].parts)
    engine.cancel([numbers[0], numbers[1]])  # one runs, one waits
    assert heard[2].reason == "length" and heard[2].text == llm.generate("a cow", max_new_tokens=30, eos=()).text
    assert heard[0].reason == "cancelled" and not heard[1].parts
    assert engine.running == engine.waiting == 0


def test_requests_run_in_the_order_they_came(llm: LLM, started: Start) -> None:
    engine = started(llm, Limits(slots=1, context=120, waiting=8))
    order: list[int] = []
    requests = [engine.request(job(llm, f"cat {number}", 5)) for number in range(5)]

    def hear(number: int) -> Callable[[StepProgress], None]:
        return lambda progress: order.append(number) if number not in order else None

    engine.submit(requests, [hear(number) for number in range(5)])
    assert eventually(lambda: engine.running == 0 and engine.waiting == 0) and order == [0, 1, 2, 3, 4]


def test_a_full_queue_says_when_to_come_back(llm: LLM) -> None:
    with serving(llm, Limits(slots=1, context=120, waiting=1)) as server:
        numbers, heard = submit(server.engine, job(llm, tokens=100), job(llm, tokens=100))
        status, answer, headers = server.send("/v1/completions", {"prompt": "a"})
        server.engine.cancel(numbers)
        assert status == 429 and headers["Retry-After"] and answer["error"]["code"] == "queue_full"
        assert server.idle() and server.send("/v1/completions", {"prompt": "a"})[0] == 200
        with pytest.raises(QueueFull):
            submit(server.engine, job(llm, tokens=100), job(llm, tokens=100))
            submit(server.engine, job(llm, tokens=100))


class Failing(Copying):
    """Raises in its n-th draft, or sleeps in every one."""

    def start(self, rows: int, shape: Shape, target: Session) -> Any:
        session, state = super().start(rows, shape, target), self.state
        propose = session.propose

        def failing(*arguments: Any) -> Draft:
            state["asked"] += 1
            time.sleep(state["sleep"])
            if state["asked"] == state["fails"]:
                raise RuntimeError("a drafter's own trouble")
            return propose(*arguments)

        session.propose = failing  # type: ignore[method-assign]
        return session

    @property
    def state(self) -> dict[str, Any]:
        return STATE


STATE: dict[str, Any] = {}


@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_a_drafter_that_raises_is_left_out_and_comes_back(llm: LLM, started: Start) -> None:
    """It used to be left out for good: a server would have run without it for months."""
    STATE.update(asked=0, fails=3, sleep=0)
    engine = started(LLM(llm.target, Failing(), width=5), Limits(slots=2, context=120, waiting=8))
    text = llm.generate("the the the", max_new_tokens=60, eos=()).text
    for again in (False, True):
        before = STATE["asked"]
        many = Job(llm.encode("the the the"), Options(max_new_tokens=60, coupling="gumbel", eos=()), 5, gamma=4)
        _, heard = submit(engine, many, many)
        assert heard[0].text == heard[1].text == text
        assert engine.drafter_failures == 1
        assert eventually(lambda: engine.running == 0)
        assert STATE["asked"] == 3 if not again else STATE["asked"] > before


def test_a_drafter_that_stalls_changes_nothing(llm: LLM, started: Start) -> None:
    STATE.update(asked=0, fails=-1, sleep=0.02)
    engine = started(LLM(llm.target, Failing(), width=5), Limits(slots=2, context=120, waiting=8))
    _, heard = submit(engine, job(llm), job(llm, "a dog"))
    assert [one.text for one in heard] == [
        llm.generate(prompt, max_new_tokens=30, eos=()).text for prompt in ("the cat", "a dog")
    ]


def test_logits_that_are_no_numbers_end_their_own_request_only(
    llm: LLM, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(llm, Limits(slots=3, context=120, waiting=8))
    marked, score = llm.encode("z")[0], CachedSession.score

    def spoiled(self: CachedSession, tail: torch.Tensor) -> torch.Tensor:
        logits = score(self, tail)
        logits[self.context.tokens[:, 0] == marked] = torch.nan
        return logits

    monkeypatch.setattr(CachedSession, "score", spoiled)
    _, heard = submit(engine, job(llm), job(llm, "zoo"), job(llm, "a dog"))
    assert heard[1].reason == "error" and "NaN" in str(heard[1].parts[-1].error)
    assert heard[0].reason == heard[2].reason == "length"
    monkeypatch.undo()
    assert heard[0].text == llm.generate("the cat", max_new_tokens=30, eos=()).text
    _, again = submit(engine, job(llm, "zoo"))
    assert again[0].text == llm.generate("zoo", max_new_tokens=30, eos=()).text


def test_memory_that_is_full_at_admission_turns_one_request_away(
    llm: LLM, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(llm, Limits(slots=2, context=120, waiting=8))
    _, first = submit(engine, job(llm, tokens=100))
    assert eventually(lambda: first[0].parts)

    def full(self: CachedSession, *arguments: Any) -> Iterator[None]:
        yield
        raise MemoryError("no more")

    monkeypatch.setattr(CachedSession, "prefill_in_parts", full)
    _, second = submit(engine, job(llm, "a dog"))
    assert second[0].reason == "error" and "memory" in str(second[0].parts[-1].error)
    monkeypatch.undo()
    assert first[0].text == llm.generate("the cat", max_new_tokens=100, eos=()).text
    _, third = submit(engine, job(llm, "a dog"))
    assert third[0].reason == "length"


@pytest.mark.filterwarnings("ignore:the batch failed")
def test_a_step_that_fails_takes_its_requests_and_no_others(
    llm: LLM, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(llm, Limits(slots=1, context=120, waiting=8))
    score = CachedSession.score
    failed = threading.Event()

    def broken(self: CachedSession, tail: torch.Tensor) -> torch.Tensor:
        if failed.is_set() or self.model is not llm.target.model:  # a draft that fails is only left out
            return score(self, tail)
        failed.set()
        raise RuntimeError("a broken kernel")

    monkeypatch.setattr(CachedSession, "score", broken)
    _, heard = submit(engine, job(llm), job(llm, "a dog"))
    assert heard[0].reason == "error" and "broken kernel" in str(heard[0].parts[-1].error)
    assert heard[1].text == llm.generate("a dog", max_new_tokens=30, eos=()).text and engine.failure is None


def raw(server: Served, body: dict[str, Any]) -> socket.socket:
    """A connection that has sent a request and read nothing."""
    connection = socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])))
    data = json.dumps(body).encode()
    head = ["POST /v1/completions HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    connection.sendall("\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_slot(llm: LLM, stream: bool) -> None:
    """Two in one slot: the second could not run before the first has ended or left."""
    with serving(llm, Limits(slots=1, context=120, waiting=8)) as server:
        ended: list[str] = []
        observe = server.engine.observe

        def watch(event: Any) -> None:
            observe(event)
            if event.row.finish_reason:
                ended.append(event.row.finish_reason)
            time.sleep(0.02)  # 90 steps would take long: time to notice that the client is gone

        server.engine.observe = watch
        connection = raw(server, {**LONG, "stream": stream})
        assert eventually(lambda: server.engine.running == 1 and server.engine.observed.steps > 2)
        connection.close()
        assert server.text("a dog", max_tokens=2, temperature=0)
        assert ended[0] == "cancelled" and server.idle()


def test_a_client_that_reads_slowly_holds_up_nobody(llm: LLM) -> None:
    with serving(llm, Limits(slots=2, context=120, waiting=8)) as server:
        slow = raw(server, {**LONG, "stream": True, "speculation": {"trace": True}})
        assert server.text("a dog", max_tokens=10, temperature=0) and server.idle()  # nothing was read of the slow one
        slow.settimeout(PATIENCE)
        read = b""
        while b"[DONE]" not in read:
            read += slow.recv(100)
        slow.close()
        assert read.count(b"data: ") > 3


def test_an_answer_that_takes_too_long_is_ended(llm: LLM) -> None:
    with serving(llm, Limits(slots=1, context=120, waiting=8), seconds=0.3) as server:
        observe = server.engine.observe
        server.engine.observe = lambda event: (observe(event), time.sleep(0.05))[0]
        status, answer, _ = server.send("/v1/completions", LONG)
        assert status == 408 and answer["error"]["code"] == "timeout" and server.idle()


def test_a_drained_engine_has_answered_all_and_takes_no_more(llm: LLM) -> None:
    engine = Engine(llm, Limits(slots=1, context=120, waiting=8))
    engine.start()
    _, heard = submit(engine, job(llm), job(llm, "a dog"), job(llm, "a cow"))
    assert engine.drain(PATIENCE) and [one.reason for one in heard] == ["length"] * 3
    pytest.raises(ServerStopping, submit, engine, job(llm))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_answers_end(target: Path, number: int) -> None:
    """A real process says what it waits for, completes the stream that is under way, and ends with code 0."""
    command = [sys.executable, "-m", "outrider", "serve", str(target), "--draft", "copy", "--port", "0",
               "--context", "120", "--engine", "torch"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("http://"))
        server = Served(None, line.split()[0])  # type: ignore[arg-type]
        connection = raw(server, {**LONG, "stream": True})
        connection.settimeout(PATIENCE)
        assert connection.recv(300)
        process.send_signal(number)
        assert b"[DONE]" in b"".join(iter(lambda: connection.recv(4096), b"")) and process.wait(PATIENCE) == 0
        said = process.stderr.read()  # nothing, where the answer ended before the signal came
        assert "stopping: 1 answer under way may end first" in said or "stopping" not in said
    finally:
        process.kill()
        process.wait()
