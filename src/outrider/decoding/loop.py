"""The loop: requests go into row slots, every target run moves all rows on, tokens come out as accepted."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from torch import Tensor

from outrider.core.model_facts import facts_of
from outrider.core.protocols import Drafter, LanguageModel, Shape, Source, Verifier
from outrider.core.sampling import Sampling
from outrider.decoding.fault import fault
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_result import HostStep, PendingStep
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.decoding.stopping import Row, Stopping
from outrider.errors import PromptError, require
from outrider.planning.policies import Fixed, JointPlanner, Policy, Pricing, Setting, declared_widths
from outrider.planning.step_clock import Timing
from outrider.runtime import timer
from outrider.trace import Ending, Record, Stopwatch, Trace, add_levels, finite

WIDTH = 9
"""Default W: tokens per row in every target run, so gamma can be anything up to 8."""


@dataclass(frozen=True)
class Request:
    """One sequence to generate."""

    prompt: tuple[int, ...]
    stopping: Stopping
    seed: int = 0
    source: Source | None = None

    @property
    def opening(self) -> str:
        """How the prompt begins, for errors: as text where the request can decode it and it is not mere noise."""
        tokens = list(self.prompt if self.source is None or isinstance(self.source, Tensor) else self.source)
        shown = f"tokens {tokens[:8]}".replace("]", ", ...]" if len(tokens) > 8 else "]")
        if self.stopping.decode is None:
            return shown
        try:
            text = self.stopping.decode(tokens[:32])
        except Exception:  # tokens outside the vocabulary are one reason to be here
            return shown
        return f"{text[:40]!r}{'...' if len(text) > 40 or len(tokens) > 32 else ''}"


@dataclass(frozen=True)
class Event:
    """What a target run added to one request."""

    index: int  # of the request
    tokens: tuple[int, ...]
    accepted: int  # how many of them were guesses
    row: Row  # everything so far


@dataclass(frozen=True)
class Decoder:
    """Target, drafter, rule and shapes. ``stream`` generates."""

    target: LanguageModel
    drafter: Drafter
    verifier: Verifier
    sampling: Sampling
    gamma: int | Policy  # guesses per run, or what chooses them row by row
    width: int = WIDTH
    slots: int | None = None  # row slots; None: as many as there are requests, at most 8
    exact: bool = True  # constant shapes, hence the same bits with and without speculation
    pool: SessionPool = field(default_factory=SessionPool)  # where sessions come from, and whether steps are replayed
    common: Shape | None = None  # the shape of all requests, which then run side by side; None: each has its own

    def __post_init__(self) -> None:
        require(self.width >= 1, f"width must be at least 1, got {self.width}")
        if isinstance(self.gamma, int):
            require(self.gamma >= 0, f"gamma must be 0 (no guesses) or more, got {self.gamma}")
            require(
                self.gamma < self.width,
                f"gamma {self.gamma} needs a width of {self.gamma + 1}, this model was loaded with {self.width}; "
                f"load it with width={self.gamma + 1}",
            )
        require(isinstance(self.gamma, (int, Policy)), f"gamma must be a whole number or a policy, got {self.gamma!r}")
        require(self.slots is None or self.slots >= 1, f"slots must be at least 1, got {self.slots}")
        size = self.target.vocab_size
        outside = [token for token in self.sampling.logit_bias if not 0 <= token < size]
        require(not outside, f"logit_bias names token {outside}, the vocabulary has {size} tokens")

    def stream(self, requests: Sequence[Request], trace: Trace, names: Sequence[int] | None = None) -> Generator[Event]:
        """Events in the order they happen. A row depends on its own request and the shapes, never on others.

        A row whose logits are not numbers, or whose stopping criterion fails, ends there with ``row.error``, and the
        others go on; NumericalError or CriterionError if that leaves none.
        ``names`` are the numbers the requests go by in events and trace; 0, 1, 2... if not given.
        """
        names = range(len(requests)) if names is None else names
        groups: dict[Shape, list[int]] = {}
        for index, shape in enumerate(self.shapes(requests, names)):
            groups.setdefault(shape, []).append(index)
        slots, decoder = self.slots or min(len(requests), 8), self.ending(requests)
        failed: dict[int, Row] = {}
        for shape, members in groups.items():
            with self.pool.lend((self.target, self.drafter), slots, shape) as runner:
                batch = _Batch(decoder, runner, trace).run([(names[i], requests[i]) for i in members])
                with closing(batch):  # before its sessions serve another batch
                    for event in batch:
                        yield event
                        if event.row.error is not None:
                            failed[event.index] = event.row
        if failed and len(failed) == len(requests):  # nothing is left to go on with
            raise next(iter(failed.values())).exception

    def shapes(self, requests: Sequence[Request], names: Sequence[int] | None = None) -> list[Shape]:
        """The shape of each request; PromptError names the first one that cannot be continued."""
        names, found = range(len(requests)) if names is None else names, []
        for name, request in zip(names, requests, strict=True):
            try:
                found.append(self.shape(request))
            except PromptError as error:
                if len(names) == 1 and name == 0:
                    raise
                raise PromptError(f"prompts[{name}], {request.opening}: {error}") from None
        return found

    def shape(self, request: Request) -> Shape:
        """The shapes a request runs in follow from it alone: that is what keeps its bits its own."""
        require(len(request.prompt) > 0, "the prompt is empty; give at least one token", PromptError)
        limit, length = self.target.max_length, len(request.prompt)
        if limit is not None and length >= limit:
            raise PromptError(f"the prompt has {length} tokens, the model's limit is {limit}; shorten it")
        outside = [t for t in request.prompt if not 0 <= t < self.target.vocab_size]
        require(
            not outside,
            f"prompt token {outside[:1]} is outside the vocabulary of {self.target.vocab_size}",
            PromptError,
        )
        self._check_source(request.source)
        return self.common or Shape(
            capacity=self._capacity(length + self.stopping(request).max_new_tokens),
            width=self.width,
            source_capacity=bucket(len(request.source), least=64) if request.source is not None else 0,
            fixed=self.exact,
        )

    def _capacity(self, tokens: int) -> int:
        """Room for a text of so many tokens and for guesses behind it; never twice the limit to hold the limit."""
        room, limit = bucket(tokens + 2 * self.width), self.target.max_length
        if limit is None:
            return room
        chunk = Shape.chunk  # prefill writes whole ones
        return min(room, -(-(limit + 2 * self.width) // chunk) * chunk)

    def stopping(self, request: Request) -> Stopping:
        """The request's rules, and the model's own: no position beyond the last it knows."""
        limit, rules = self.target.max_length, request.stopping
        room = rules.max_new_tokens if limit is None else limit - len(request.prompt)
        return replace(rules, max_new_tokens=min(rules.max_new_tokens, room))

    def ending(self, requests: Sequence[Request]) -> Decoder:
        """The same, with sampling options that name the end tokens all requests have: processors need them."""
        if not self.sampling.processors or not requests:
            return self
        ends = frozenset.intersection(*(request.stopping.eos for request in requests))
        return replace(self, sampling=replace(self.sampling, ends=ends))

    def _check_source(self, source: Source | None) -> None:
        if source is None:
            return
        limit = self.target.max_length
        require(len(source) > 0, "the source is empty; give at least one token", PromptError)
        if isinstance(source, Tensor):  # an encoder's finished output
            return
        if limit is not None and len(source) > limit:
            raise PromptError(f"the source has {len(source)} tokens, the model's limit is {limit}; shorten it")
        outside = [t for t in source if not 0 <= t < self.target.vocab_size]
        require(not outside, f"source token {outside[:1]} is outside the vocabulary", PromptError)


def bucket(size: int, least: int = 256) -> int:
    """The next power of two, so that few different shapes occur."""
    return max(least, 1 << (size - 1).bit_length())


class _Batch:
    """A fixed number of row slots on one target session and one draft session."""

    def __init__(self, decoder: Decoder, runner: StepRunner, trace: Trace) -> None:
        self.decoder, self.runner, self.trace = decoder, runner, trace
        self.rule, self.watch = Rule(decoder.verifier, decoder.sampling), Stopwatch(trace.seconds)
        self.target, self.drafter, self.seeds = runner.target, runner.drafter, runner.seeds
        slots = runner.seeds.shape[0]
        self.rows: list[tuple[int, Row] | None] = [None] * slots
        policy = Fixed(decoder.gamma) if isinstance(decoder.gamma, int) else decoder.gamma
        # Runs of constant width cost the same, whatever is in them.
        self.narrow = not decoder.exact or facts_of(decoder.target).batch_invariant
        widths = declared_widths(decoder.target, slots) if self.narrow else 1.0
        self.splits = self.target.device.type == "cpu"  # on a GPU the clock sees work being launched, not done
        same_text = decoder.verifier.compares and decoder.verifier.exact  # guesses with the target's own tokens
        setting = Setting(slots, decoder.width - 1, decoder.drafter, runner.shape, widths, self.splits, same_text)
        self.planner = policy.start(setting)
        self.pricing = self.planner if isinstance(self.planner, Pricing) else None
        self.joint = self.planner if isinstance(self.planner, JointPlanner) else None
        self.asked = [0] * slots  # guesses asked for in the run at hand
        self.began, self.drafted, self.captures = 0.0, 0.0, 0  # its beginning; seconds of drafts, captures before it

    def run(self, requests: Sequence[tuple[int, Request]]) -> Generator[Event]:
        try:
            yield from self._run(deque(requests))
        finally:  # also when the caller stops listening, or is interrupted
            self.trace.drafter_error = self.trace.drafter_error or self.drafter.error
            self.trace.levels = add_levels(self.trace.levels, self.drafter.levels)

    def _run(self, waiting: deque[tuple[int, Request]]) -> Generator[Event]:
        begun: PendingStep | None = None  # a step that is already under way
        while waiting or any(self.rows):
            for slot, row in enumerate(self.rows):
                if row is None and waiting:
                    self._admit(slot, *waiting.popleft())
            events = self._take(self._read(begun or self._begin(bool(waiting))))
            # What the caller does with the events is done while the device works, if there is nobody to let in first.
            goes_on = self.runner.ahead and any(self.rows) and not (waiting and None in self.rows)
            begun = self._begin(bool(waiting)) if goes_on else None
            yield from events
            self.watch.lap("host")

    def _admit(self, slot: int, index: int, request: Request) -> None:
        self.watch.lap("host")
        self.target.admit(slot, request.prompt, request.source)
        self.drafter.admit(slot, request.prompt, request.source)
        self.planner.admit(slot)
        self.seeds[slot] = request.seed
        self.rows[slot] = (index, self.decoder.stopping(request).start(request.prompt))
        self.watch.lap("prefill")

    def _begin(self, waiting: bool) -> PendingStep:
        self.began, self.drafted, self.captures = timer.now(), self.trace.seconds["draft"], self.runner.captures
        drafting = self.drafter.session is not None
        if self.joint is not None:
            self.joint.begin([max(1, row[1].left) if row else 0 for row in self.rows], waiting)
        self.asked = [self.planner.choose(i) if row and drafting else 0 for i, row in enumerate(self.rows)]
        wrong = [g for g in self.asked if not 0 <= g < self.decoder.width]
        require(not wrong, f"the policy asked for {wrong} guesses; gamma must be from 0 to {self.decoder.width - 1}")
        self.drafter.cap(self.asked)
        self.drafter.price(None if self.pricing is None else self.pricing.prices)
        self.trace.runs += 1
        return self.runner.launch(self.rule, max(self.asked), self.watch)

    def _read(self, begun: PendingStep) -> HostStep:
        host = begun.read()
        if self.target.device.type != "cpu":  # what a replay did inside cannot be told apart: all of it is 'target'
            self.watch.lap("target")
        self.trace.graphs |= self.runner.graphs and self.rule.capturable and self.runner.captures > 0
        if self.runner.captures == self.captures:  # a capture takes long, once
            self.planner.timed(self._timing(host.guesses, timer.now() - self.began))
        return host

    def _timing(self, guesses: int, seconds: float) -> Timing:
        if not self.splits:
            return Timing(guesses + 1, seconds)
        width = guesses + 1 if self.narrow else 1
        drafting = self.trace.seconds["draft"] - self.drafted
        if max(self.asked) == 0:
            return Timing(width, seconds - drafting)
        spent = self.drafter.spent
        return Timing(width, seconds - drafting, drafting, guesses if spent is None else spent)

    def _take(self, host: HostStep) -> list[Event]:
        """What a step gave goes into rows, planner and trace; rows that ended leave their slots."""
        events = []
        for slot, entry in enumerate(self.rows):
            if entry is None:
                continue
            index, row = entry
            emitted, drafted, overlap, healthy = host.row(slot)
            position = len(row.prompt) + len(row.tokens)
            taken = row.push(emitted)
            if len(taken) > healthy:  # bad logits behind guesses that do not count are nobody's business
                self.runner.spoiled = True
                reason = fault(self.target, slot, position + healthy, self.rule.sampling)
                row.fail(len(taken) - healthy, reason)
                taken = taken[:healthy]
            # Guesses that met bad logits were not judged, be they discarded or behind the end of the text.
            emitted, drafted, overlap = emitted[: healthy + 1], drafted[:healthy], overlap[:healthy]
            accepted = len(emitted) - 1
            self.planner.learn(slot, self.asked[slot], accepted, min(accepted + 1, len(drafted)))
            if taken:
                self.trace.records.append(
                    Record(index, position, tuple(drafted), accepted, emitted[-1], tuple(finite(overlap)), len(taken))
                )
            events.append(Event(index, tuple(taken), min(accepted, len(taken)), row))
            if row.finish_reason is not None:
                self.trace.endings.append(Ending(index, row.finish_reason, row.stop_reason))
                self.rows[slot] = None
                self.target.release(slot)
                self.drafter.release(slot)
        return events
