"""The engine of a server: one thread that runs a batch which requests join and leave between steps."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from outrider.core.protocols import Drafter
from outrider.core.verification.choose import choose
from outrider.decoding.loop import Decoder, Event, Request
from outrider.decoding.step_runner import Rule
from outrider.decoding.stopping import Row
from outrider.drafters import BUILT_IN
from outrider.drafters.by_request import ByRequest
from outrider.drafters.forced import Forced
from outrider.drafters.predicted import Predicted
from outrider.errors import require
from outrider.llm import LLM
from outrider.options import Options
from outrider.planning.policies import Auto
from outrider.runtime import timer
from outrider.serve.job import Deliver, Job, QueueFull, ServerStopping, StepProgress
from outrider.serve.observed import Observed
from outrider.serve.settings import public_name
from outrider.trace import Trace

NOT_BY_REQUEST = {
    "auto": "the server's own drafter, whatever that is",
    "uniform": "random guesses, for tests: gamma is planned from what all guesses of a batch have gained",
}
"""Built-in drafters that no request is given, and why. Every other one may be named by all users of a server: it needs
no model, and guesses from nothing but the row it drafts for."""

TRIES = 3
"""Batches in a row that may fail before any of their steps has ended; then the engine gives up."""


@dataclass
class _Submitted:
    """A request that was submitted and has not ended."""

    request: Request
    deliver: Deliver  # called with every step
    delivered: int = 0  # characters of its text so far


@dataclass(frozen=True)
class Limits:
    """How much the engine takes on."""

    slots: int = 8  # requests that run together
    context: int = 2016  # tokens of a prompt and its answer
    waiting: int = 64  # requests that may wait for a slot


def drafters_by_name(llm: LLM, more: Mapping[str, Drafter]) -> dict[str, Drafter]:
    """The drafters of a server by the names that requests may give: the model's own first, then others that were
    loaded, and those of ``BUILT_IN``. With CUDA graphs the model's own only, and none."""
    own = {public_name(llm.drafter.name): llm.drafter}
    if llm.graphs:
        several = f"draft {', '.join(more)}: with CUDA graphs there is one drafter; use --no-graphs for several"
        require(not more, several)
        return own
    taken = {*own, *more, *NOT_BY_REQUEST}
    return own | dict(more) | {name: make() for name, make in BUILT_IN.items() if name not in taken}


@dataclass
class Engine:
    """Runs jobs of any options together. ``start`` it, ``submit`` from any thread, ``drain`` at the end."""

    llm: LLM
    limits: Limits = field(default_factory=Limits)
    drafters: Mapping[str, Drafter] = field(default_factory=dict)  # beside the model's own, for requests that name them
    observe: Callable[[Event], None] = lambda event: None  # told of every event, in the engine's thread

    def __post_init__(self) -> None:
        base = self.llm.call(Options(coupling="gumbel")).decoder
        named = drafters_by_name(self.llm, self.drafters)
        self.drafts = tuple(named)  # names that requests may give, the first for those that give none
        # With CUDA graphs all guesses that are verified must be those of one drafter.
        drafter = base.drafter if self.llm.graphs else Forced(Predicted(ByRequest(named)))
        # A model without a drafter of its own has nothing to find out; its requests may name others.
        policy = Auto() if base.gamma == 0 and not self.llm.graphs else base.gamma
        self.decoder: Decoder = replace(base, drafter=drafter, gamma=policy, slots=self.limits.slots)
        self.queue = self.decoder.queue(self.limits.context)
        self.observed = Observed()
        self.failure: str | None = None  # why the engine has given up
        self.drafter_failures = 0
        self._submitted: dict[int, _Submitted] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="outrider-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request(self, job: Job) -> Request:
        """The job as the batch runs it; raises where it cannot be run. From any thread."""
        call = self.llm.call(job.options)
        own = call.behind(len(job.prompt))
        stopping = call.stopping
        sampling = replace(own.sampling, ends=stopping.eos) if own.sampling.processors else own.sampling
        verifier = choose(job.options.coupling, sampling.greedy)
        rule = Rule(verifier, sampling, job.logprobs)
        owner = job.owner if self.llm.memory is not None else None
        request = Request(tuple(job.prompt), stopping, job.seed, rule=rule, gamma=job.gamma, owner=owner)
        if self.llm.graphs:
            return request
        gamma = self.decoder.width - 1 if job.prediction and job.gamma is None else job.gamma
        return replace(request, gamma=gamma, prediction=job.prediction, forced=job.forced, drafter=job.drafter)

    def submit(self, requests: Sequence[Request], deliver: Sequence[Deliver]) -> list[int]:
        """Let requests wait for a slot, all or none of them -> the numbers to cancel them by."""
        with self._lock:
            if self.failure is not None or self.queue.closed:
                raise ServerStopping(self.failure or "the server is about to stop; send the request to another one")
            self._check_count(len(requests))
            new = [_Submitted(request, told) for request, told in zip(requests, deliver, strict=True)]
            return self.queue.submit_all(requests, [partial(self._register, one) for one in new])

    def _check_count(self, count: int) -> None:
        limits, waiting = self.limits, len(self.queue)
        most = limits.slots + limits.waiting
        require(count <= most, f"a request may have at most {most} prompts and choices on this server, got {count}")
        if len(self._submitted) + count > most:
            raise QueueFull(f"{waiting} requests wait and {self.running} run already; try again in a moment")

    def _register(self, submitted: _Submitted, number: int) -> None:
        self._submitted[number] = submitted

    def cancel(self, numbers: Sequence[int]) -> None:
        """Nobody waits for these any more: they leave their slots before the next step."""
        for number in numbers:
            if number in self._submitted and self.queue.cancel(number):
                self._submitted.pop(number, None)

    @property
    def running(self) -> int:
        return max(0, len(self._submitted) - len(self.queue))

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def stalled(self, seconds: float) -> bool:
        """Whether requests run and no step has ended for so long."""
        return self.running > 0 and timer.now() - self.observed.last_step > seconds

    def close(self) -> None:
        """Take no more requests."""
        self.queue.close()

    def drain(self, seconds: float | None = None) -> bool:
        """Take no more requests and wait for those there are -> whether all have ended. Others are cancelled."""
        self.close()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.cancel(list(self._submitted))
            self._thread.join(30)
        return not self._thread.is_alive()

    def _work(self) -> None:
        failures = 0
        while True:
            steps = self.observed.steps
            try:
                self._run_batch()
            except Exception as error:
                failures = failures + 1 if self.observed.steps == steps else 1
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                where = traceback.format_exc()
                warnings.warn(f"the batch failed, and the requests in it with it: {reason}\n{where}", stacklevel=1)
                self._fail(reason, failures >= TRIES)
            if self.failure is not None or (self.queue.closed and not self.queue.waiting):
                return

    def _run_batch(self) -> None:
        """Until the queue is closed and empty, or until the drafter has failed and nobody waits: the next batch has
        it again."""
        trace, drafting = Trace(), True
        for event in self.decoder.serve(self.queue, trace, self.limits.context, self.limits.slots):
            self._deliver(event)
            trace.records.clear()  # a server runs for months
            trace.endings.clear()
            if drafting and trace.drafter_error is not None:
                drafting = False
                self.drafter_failures += 1
                self.queue.renew()

    def _deliver(self, event: Event) -> None:
        """Pass a step on: to statistics, and to whoever submitted the request."""
        self.observed.add(event)
        self.observe(event)
        submitted = self._submitted.get(event.index)
        if submitted is None:
            return
        text = event.row.printable(self.llm.decode, submitted.delivered)
        submitted.delivered += len(text)
        submitted.deliver(StepProgress.of(event, text))
        if event.row.finish_reason is not None:
            self._submitted.pop(event.index, None)
            self._remember(submitted.request, event.row)

    def _remember(self, request: Request, row: Row) -> None:
        """Keep an answer for later ones to the same owner, where there is a memory for it."""
        if self.llm.memory is not None and request.owner is not None and row.error is None:
            self.llm.memory.add(request.owner, row.prompt, row.tokens)

    def _fail(self, reason: str, for_good: bool) -> None:
        """Requests that ran are told; those that wait go into the next batch, unless there will be none."""
        with self._lock:
            if for_good:
                self.failure = f"the engine has stopped after {TRIES} failures: {reason}"
            waiting = set() if for_good else self.queue.numbers()
            lost = [self._submitted.pop(number) for number in list(self._submitted) if number not in waiting]
        for submitted in lost:
            submitted.deliver(StepProgress.failed(f"the batch failed: {reason}"))
