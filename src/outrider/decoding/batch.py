"""A batch: requests go into row slots, every target run moves all rows on, rows that ended make room for others."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from outrider.core.model_facts import facts_of
from outrider.core.processors import ByRow
from outrider.core.protocols import Drafter, LanguageModel, Verifier
from outrider.core.sampling import Sampling
from outrider.decoding.entering import Entering, release, share_prefixes
from outrider.decoding.fault import fault
from outrider.decoding.inbox import Inbox
from outrider.decoding.memory import exhausted
from outrider.decoding.request import Event, Request, TokenLogprobs
from outrider.decoding.row_rules import joint_rule
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.decoding.step_timer import Launched, StepTimer
from outrider.decoding.stopping import Row, Stopping
from outrider.errors import require
from outrider.planning.policies import ClockPlanner, Fixed, JointPlanner, Policy, Pricing, Setting, declared_widths
from outrider.runtime import timer
from outrider.trace import Ending, Record, Stopwatch, Trace, add_levels, known

WIDTH = 9
"""Default W: tokens per row in every target run, so gamma can be anything up to 8."""


@dataclass(frozen=True)
class BatchRules:
    """What holds for every row of a batch."""

    target: LanguageModel
    drafter: Drafter
    verifier: Verifier
    sampling: Sampling
    gamma: int | Policy  # guesses per run, or what chooses them row by row
    width: int = WIDTH
    slots: int | None = None  # row slots; None: as many as there are requests, up to what suits the target
    exact: bool = True  # constant shapes, hence the same bits with and without speculation
    fresh_seeds: bool = field(default=False, kw_only=True)  # they were drawn for this call and serve no other

    def stopping(self, request: Request) -> Stopping:
        """The request's rules, and the model's own: no position beyond the last it knows."""
        limit, rules = self.target.max_length, request.stopping
        room = rules.max_new_tokens if limit is None else limit - len(request.prompt)
        return replace(rules, max_new_tokens=min(rules.max_new_tokens, room))


class RunningBatch:
    """A fixed number of row slots on one target session and one draft session."""

    def __init__(
        self, decoder: BatchRules, runner: StepRunner, trace: Trace, distinct: bool = False, serving: bool = False
    ) -> None:
        """``distinct``: no two requests share a seed, so what one row shows says nothing of another's draws.
        ``serving``: a request that memory is too small for ends with an error, and the others go on."""
        self.serving = serving
        if serving:
            share_prefixes([runner.target, *runner.drafter.abilities.model_sessions])
        self.entering: Entering | None = None  # requests whose prompts are being run
        self.unwanted: set[int] = set()  # those of them that were cancelled
        self.decoder, self.runner, self.trace = decoder, runner, trace
        self.own_rule = self.rule = Rule(decoder.verifier, decoder.sampling)
        self.watch = Stopwatch(trace.seconds)
        self.target, self.drafter, self.seeds = runner.target, runner.drafter, runner.seeds
        self.rows: list[tuple[int, Row] | None] = [None] * (slots := len(runner.seeds))
        self.requests: list[Request | None] = [None] * slots  # of the rows, in the same places
        policy = Fixed(decoder.gamma) if isinstance(decoder.gamma, int) else decoder.gamma
        # Runs of constant width cost the same, whatever is in them.
        self.narrow = not decoder.exact or facts_of(decoder.target).batch_invariant
        widths_of = partial(declared_widths, decoder.target) if self.narrow else None
        self.splits = self.target.device.type == "cpu"  # on a GPU the clock sees work being launched, not done
        same_text = decoder.verifier.compares and decoder.verifier.exact  # guesses with the target's own tokens
        joint = same_text or (distinct and decoder.fresh_seeds)
        widths = 1.0 if widths_of is None else widths_of(slots), widths_of if self.splits else None
        of_steps = *widths, self.splits, joint, not decoder.sampling.greedy
        self.planner = policy.start(Setting(slots, decoder.width - 1, decoder.drafter, runner.shape, *of_steps))
        # A step is launched before the one before it was read: the device never waits for the host. Where the text
        # depends on gamma and no clock is asked, gamma may not depend on whether steps are replayed.
        timed = isinstance(self.planner, ClockPlanner) and self.planner.timed_by_clock
        free = same_text or timed or isinstance(policy, Fixed)
        self.ahead = runner.ahead and free
        # A drafter that is never asked costs nothing. On a CPU it rests once: waking, it reads all texts anew.
        self.drafter.rest(self.lookahead or (free and not isinstance(policy, Fixed)), again=self.lookahead)
        self.pricing = self.planner if isinstance(self.planner, Pricing) else None
        self.joint = self.planner if isinstance(self.planner, JointPlanner) else None
        self.timer = StepTimer(self.drafter, self.watch, self.splits, self.narrow)

    @property
    def lookahead(self) -> bool:
        """Whether a step is launched before the last one was read; processors are asked step by step."""
        return self.ahead and self.rule.capturable

    def run(self, inbox: Inbox) -> Generator[Event]:
        try:
            yield from self._run(inbox)
        finally:  # also when the caller stops listening, or is interrupted
            self.trace.drafter_error = self.trace.drafter_error or self.drafter.error
            self.trace.levels = add_levels(self.trace.levels, self.drafter.levels)

    def _run(self, inbox: Inbox) -> Generator[Event]:
        under_way: deque[Launched] = deque()
        while any(self.rows) or self.entering is not None or inbox.waiting or inbox.more():
            yield from self._cancel(inbox.cancelled())
            yield from self._admit(inbox)
            if not any(self.rows) and not under_way:  # whoever ran or was to run has left
                continue
            while under_way and not self.lookahead:  # of a rule that allowed it, before another request came
                yield from self._take(under_way.popleft())
            if not under_way or self._goes_on():
                under_way.append(self._begin(inbox.waiting))
            if len(under_way) > self.lookahead or not self._goes_on():
                yield from self._take(under_way.popleft())
            self.watch.lap("host")
            if not any(self.rows):  # every row had ended before the step that is under way
                self.trace.runs -= len(under_way)
                while under_way:
                    under_way.pop()
                    if self.joint is not None:
                        self.joint.ended([0] * len(self.rows))

    def _goes_on(self) -> bool:
        """Whether some row goes on behind the step under way, as far as is known: that gives each a token."""
        return any(row is not None and row[1].left > 1 for row in self.rows)

    def _cancel(self, numbers: set[int]) -> Iterator[Event]:
        """Rows of requests that are no longer wanted leave their slots, those on their way into one a little later."""
        numbers, self.unwanted = numbers | self.unwanted, set()
        if self.entering is not None:
            self.unwanted = numbers & {index for index, _ in self.entering.requests}
        for slot, entry in enumerate(self.rows):
            if entry is not None and entry[0] in numbers:
                entry[1].finish_reason = "cancelled"
                self._leave(slot, entry)
                yield Event(entry[0], (), 0, entry[1])

    def _leave(self, slot: int, entry: tuple[int, Row]) -> None:
        """The row has ended: its slot is free."""
        index, row = entry
        self.trace.endings.append(Ending(index, str(row.finish_reason), row.stop_reason))
        self.rows[slot] = self.requests[slot] = None
        release(self.target, slot, failed=self.serving and row.error is not None)
        self.drafter.release(slot)
        if self.rule is not self.own_rule:
            self._set_rule()

    def _set_rule(self) -> None:
        """Rows may have rules of their own."""
        given = {slot: request.rule for slot, request in enumerate(self.requests) if request is not None}
        joint = {slot: rule or self.own_rule for slot, rule in given.items()}
        self.rule = joint_rule(joint) if any(given.values()) else self.own_rule

    def _admit(self, inbox: Inbox) -> Iterator[Event]:
        """Empty slots take who waits, and prompts of like length side by side where they are prefilled together.

        While serving, rows that run take a step between two parts of others' prompts, and requests for which there is
        no memory end with an error.
        """
        if self.entering is None:
            empty = [slot for slot, row in enumerate(self.rows) if row is None]
            taken = inbox.take(len(empty)) if empty and inbox.waiting else []
            if not taken:
                return
            by_slot = any(isinstance(one, ByRow) for one in self.decoder.sampling.processors)
            if facts_of(self.decoder.target).batch_invariant and not by_slot:
                taken.sort(key=lambda entry: -len(entry[1].prompt))
            self.entering = Entering.of(taken, empty, self.target, self.serving and not self.ahead)
        self.watch.lap("host")
        try:
            while not (done := self.entering.advance()) and not any(self.rows):
                pass
        except (RuntimeError, MemoryError) as error:
            if not self.serving or (kind := exhausted(error)) is None:
                raise
            yield from self.entering.refused(f"no {kind} for the prompt; send a shorter one, or try later", self.target)
            self.entering = None
            return
        if done:
            self._enter(self.entering)
            self.entering = None
        self.watch.lap("prefill")

    def _enter(self, entering: Entering) -> None:
        """Prompts have been run: their rows begin."""
        self.drafter.admit_all(entering.admissions)
        slots = torch.tensor([one.row for one in entering.admissions])
        seeds = torch.tensor([request.seed for _, request in entering.requests], dtype=torch.int64)
        self.seeds[slots.to(self.seeds.device)] = seeds.to(self.seeds.device)
        for one, (index, request) in zip(entering.admissions, entering.requests, strict=True):
            self.planner.admit(one.row)
            self.rows[one.row] = (index, self.decoder.stopping(request).start(request.prompt))
            self.requests[one.row] = request
        self._set_rule()

    def _begin(self, waiting: bool) -> Launched:
        began = timer.now()
        drafting = self.drafter.session is not None
        if self.joint is not None:
            self.joint.begin([max(1, row[1].left) if row else 0 for row in self.rows], waiting)
        asked = [self._gamma(slot) if row and drafting else 0 for slot, row in enumerate(self.rows)]
        wrong = [g for g in asked if not 0 <= g < self.decoder.width]
        require(not wrong, f"the policy asked for {wrong} guesses; gamma must be from 0 to {self.decoder.width - 1}")
        self.drafter.cap(asked)
        if any(asked):
            self.drafter.price(None if self.pricing is None else self.pricing.prices)
        self.trace.runs += 1
        self.watch.lap("host")  # planning is not drafting
        drafted = self.trace.seconds["draft"]
        step = self.runner.launch(self.rule, max(asked), self.watch)
        return Launched(step, list(self.rows), asked, self.lookahead, began, drafted, timer.now() - began)

    def _gamma(self, slot: int) -> int:
        chosen, entry, request = self.planner.choose(slot), self.rows[slot], self.requests[slot]
        return chosen if entry is None or request is None else request.guesses(entry[1], chosen, self.decoder.width - 1)

    def _take(self, launched: Launched) -> list[Event]:
        """What a step gave goes into rows, planner and trace; rows that ended leave their slots."""
        host, events = self.timer.read(launched), []
        self.trace.graphs |= self.runner.graphs and self.rule.capturable and self.runner.captures > 0
        self.trace.drafter_error = self.trace.drafter_error or self.drafter.error
        seconds = launched.ready - launched.began
        for slot, entry in enumerate(launched.rows):
            if entry is None or entry[1].finish_reason is not None:  # it ended while the step was under way
                continue
            index, row = entry
            emitted, drafted, overlap, healthy = host.row(slot)
            position, request, asked = len(row.prompt) + len(row.tokens), self.requests[slot], launched.asked[slot]
            sure = request is not None and request.sure(row) >= asked  # what follows says nothing of the drafter
            taken = row.push(emitted)
            logprobs = self._logprobs(launched, slot, taken)
            if len(taken) > healthy:  # bad logits behind guesses that do not count are nobody's business
                self.runner.spoiled = True
                rule = self.own_rule if request is None or request.rule is None else request.rule
                reason = fault(self.target, slot, position + healthy, rule.sampling)
                row.fail(len(taken) - healthy, reason)
                taken = taken[:healthy]
            # Guesses that met bad logits were not judged, be they discarded or behind the end of the text.
            emitted, drafted, overlap = emitted[: healthy + 1], drafted[:healthy], overlap[:healthy]
            accepted = len(emitted) - 1
            told = (0, 0, 0) if sure else (asked, accepted, min(accepted + 1, len(drafted)))
            self.planner.learn(slot, *told)
            record = None
            if taken:
                record = Record(index, position, tuple(drafted), accepted, emitted[-1], known(overlap), len(taken))
                self.trace.records.append(record)
            kept = min(accepted, len(taken))
            events.append(Event(index, tuple(taken), kept, row, record, asked, seconds, logprobs))
            if row.finish_reason is not None:
                self._leave(slot, entry)
        if self.joint is not None:
            same = zip(self.rows, launched.rows, strict=True)
            self.joint.ended([max(1, now[1].left) if now is not None and now is then else 0 for now, then in same])
        if (timing := self.timer.timing(launched, host.guesses)) is not None:
            self.planner.timed(timing)
        return events

    def _logprobs(self, launched: Launched, slot: int, taken: list[int]) -> TokenLogprobs | None:
        """Of the tokens a step gave to a row, where its request asks for them."""
        request, logits = self.requests[slot], launched.step.logits
        if logits is None or request is None or request.rule is None or request.rule.logprobs is None:
            return None
        return TokenLogprobs.of(logits[slot, : len(taken)], taken, request.rule.logprobs)
