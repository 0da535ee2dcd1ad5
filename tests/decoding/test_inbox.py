"""Requests that come and go while a batch runs."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from helpers import case, wrapped
from outrider.core import host_sync
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, ModelDrafter
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


def test_a_cancelled_request_leaves_its_slot_between_steps() -> None:
    """One that runs gives its slot to the next with an event that says so; one that waits is gone without one."""
    requests = case("llama").requests
    served = decoder()
    queue = served.queue(CAPACITY)
    numbers = [queue.submit(request) for request in (*requests[:2], requests[0], requests[1])]
    assert queue.cancel(numbers[2]) and len(queue) == 3
    reasons: dict[int, str | None] = {}
    texts = {}
    queue.close()
    for event in served.serve(queue, Trace(), CAPACITY, slots=2):
        reasons[event.index], texts[event.index] = event.row.finish_reason, list(event.row.tokens)
        if event.index == numbers[0] and event.row.finish_reason is None:
            assert not queue.cancel(numbers[0])
    assert reasons[numbers[0]] == "cancelled" and numbers[2] not in reasons
    assert texts[numbers[3]] == texts[numbers[1]] == alone(requests[1])


@pytest.mark.parametrize(
    "options",
    [
        [Sampling(), Sampling(1.0), Sampling(0.7, top_p=0.8), Sampling(1.3, frequency_penalty=1.0), Sampling(0.9)],
        [Sampling(), Sampling(frequency_penalty=2.0), Sampling(repetition_penalty=3.0)],
    ],
    ids=["sampled", "greedy"],
)
def test_rows_have_rules_of_their_own(options: list[Sampling]) -> None:
    """Requests with other options share target runs, and each has the text of a batch of its own."""
    base = case("llama").requests
    rules = [Rule(gumbel_coupling, one) for one in options]
    requests = [replace(base[number % len(base)], rule=rule, seed=number) for number, rule in enumerate(rules)]
    if any(not one.greedy for one in options):
        requests.append(replace(base[0], rule=Rule(maximal_coupling, Sampling(1.0)), seed=9))
    drafter = ModelDrafter(wrapped("llama"))
    served = replace(decoder(), drafter=drafter, slots=3)
    queue = served.queue(CAPACITY)
    numbers = [queue.submit(request) for request in requests]
    queue.close()
    texts = {event.index: list(event.row.tokens) for event in served.serve(queue, Trace(), CAPACITY, slots=3)}
    for number, request in list(zip(numbers, requests, strict=True))[: len(options)]:
        own = replace(decoder(0), sampling=request.rule.sampling)  # type: ignore[union-attr]
        assert texts[number] == [list(event.row.tokens) for event in own.stream([request], Trace())][-1]
    assert texts[numbers[-1]]


def test_each_request_may_have_its_gamma() -> None:
    requests = case("llama").requests
    served = decoder(2)
    queue = served.queue(CAPACITY)
    wanted = {queue.submit(replace(requests[0], gamma=gamma)): gamma for gamma in (0, 4, None)}
    queue.close()
    asked: dict[int, set[int]] = {}
    for event in served.serve(queue, Trace(), CAPACITY, slots=3):
        if event.row.left > 4:
            asked.setdefault(event.index, set()).add(event.asked)
    assert asked == {number: {2 if gamma is None else gamma} for number, gamma in wanted.items()}


def test_a_long_prompt_is_prefilled_between_steps_of_others() -> None:
    """A prompt of two chunks used to be run whole while every other request waited."""
    requests = case("llama").requests
    served = decoder(0)
    queue = served.queue(CAPACITY)
    first = queue.submit(requests[0])
    prompt = tuple(3 + place % 20 for place in range(85))
    long = replace(requests[1], prompt=prompt, stopping=replace(requests[1].stopping, max_new_tokens=4))
    second, between, texts = -1, 0, {}
    for event in served.serve(queue, Trace(), CAPACITY, slots=2):
        if second < 0:
            second = queue.submit(long)
            queue.close()
        between += event.index == first and second not in texts
        texts[event.index] = list(event.row.tokens)
    assert between >= 4 and texts == {first: alone(requests[0]), second: alone(long)}
