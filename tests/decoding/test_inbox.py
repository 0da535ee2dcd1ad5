"""Requests that come and go while a batch runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from helpers import case, wrapped
from outrider.core import host_sync
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import StepRunner
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying
from outrider.errors import BadOption, PromptError
from outrider.planning.policies import Auto
from outrider.trace import Trace

CAPACITY = 100


def decoder(gamma: int = 3) -> Decoder:
    return Decoder(wrapped("llama"), Copying(), gumbel_coupling, Sampling(), gamma, slots=2)


def alone(request: Request) -> list[int]:
    return [list(event.row.tokens) for event in decoder(0).stream([request], Trace())][-1]


def test_requests_that_come_while_others_run_have_their_own_text() -> None:
    """More of them than slots, one after another, each put in when another one has begun or ended."""
    requests, texts = case("llama").requests, {}
    served = decoder()
    queue = served.queue(CAPACITY)
    numbers = {queue.submit(requests[0]): requests[0]}
    for event in served.serve(queue, Trace(), CAPACITY, slots=2):
        texts[event.index] = list(event.row.tokens)
        if len(numbers) < 2 * len(requests):
            request = requests[len(numbers) % len(requests)]
            numbers[queue.submit(request)] = request
        else:
            queue.close()
    assert texts == {number: alone(request) for number, request in numbers.items()}


def test_a_batch_without_rows_waits_for_the_next_request() -> None:
    requests, texts, ended = case("llama").requests, {}, threading.Event()
    served = decoder()
    queue = served.queue(CAPACITY)

    def work() -> None:
        for event in served.serve(queue, Trace(), CAPACITY, slots=2):
            texts[event.index] = list(event.row.tokens)
            if event.row.finish_reason is not None:
                ended.set()

    worker = threading.Thread(target=work)
    worker.start()
    for number, request in enumerate(requests):
        ended.clear()
        assert queue.submit(request) == number
        assert ended.wait(60)
    queue.close()
    worker.join(60)
    assert not worker.is_alive()
    assert texts == {number: alone(request) for number, request in enumerate(requests)}


def test_who_submits_is_told_what_cannot_run() -> None:
    queue = decoder().queue(20)
    with pytest.raises(PromptError, match="made for 20"):
        queue.submit(Request((1, 2, 3), Stopping(18)))
    with pytest.raises(PromptError, match="empty"):
        queue.submit(Request((), Stopping(4)))
    queue.submit(Request((1, 2, 3), Stopping(17)))
    queue.close()
    with pytest.raises(BadOption, match="closed"):
        queue.submit(Request((1, 2, 3), Stopping(4)))


def test_a_step_that_nobody_reads_is_told_to_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that end by a token leave a step under way; the next run's outcome would be counted as that one's."""
    monkeypatch.setattr(host_sync, "on_cpu", False)
    monkeypatch.setattr(StepRunner, "ahead", property(lambda runner: runner.graphs))
    planners: list[Any] = []

    class Noted:
        def start(self, setting: Any) -> Any:
            planners.append(Auto(0.05).start(setting))
            return planners[0]

    request = case("llama").requests[0]
    ends = Stopping(20, eos=frozenset(alone(request)[3:4]))
    pool = SessionPool(graphs=True)
    served = Decoder(wrapped("llama"), Copying(), gumbel_coupling, Sampling(), Noted(), slots=2, pool=pool)
    queue = served.queue(CAPACITY)
    left = [Request(request.prompt, ends)] * 3
    queue.submit(left.pop())
    for event in served.serve(queue, Trace(), CAPACITY, slots=2):
        if event.row.finish_reason is not None:
            assert event.row.finish_reason == "eos"
            queue.submit(left.pop()) if left else queue.close()
    assert not planners[0].begun
