"""The loop for trees of guesses: one request after another, each run of the target over a whole tree."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.core.draft import Choices
from outrider.core.model_facts import CPU, facts_of
from outrider.core.noise import Noise, Silence
from outrider.core.prices import Ladder
from outrider.core.protocols import Admission, DraftSession
from outrider.core.sampling import choices, standardise
from outrider.core.token_tree import ROOT, TokenTree, TreeScoring, TreeShape
from outrider.core.traits import declared_cost
from outrider.core.verification.tree import TreeDraft, TreeVerdict, tree_rule, walk
from outrider.decoding.batch import BatchRules
from outrider.decoding.fault import fault
from outrider.decoding.inbox import Numbered
from outrider.decoding.request import Event, Request
from outrider.decoding.step_runner import StepRunner
from outrider.decoding.stopping import Row
from outrider.decoding.tree_device import DeviceTrees, TreeOutcome
from outrider.decoding.tree_growth import ForkedOracle, GrowthRules, grow
from outrider.errors import require
from outrider.planning.policies import ASKING, declared_widths
from outrider.planning.tree_costs import Outlook, SampledOutlook, TreeCosts
from outrider.runtime import timer
from outrider.theory import Costs
from outrider.trace import Ending, Record, Stopwatch, Trace

NO_TREE = TreeDraft(TokenTree((), ()))

LEVELS = 8
"""Of a tree that is grown on a device, where nobody says how many."""


@dataclass(frozen=True)
class TreePlan:
    """How large trees may be."""

    nodes: int  # at most
    depth: int | None = None  # levels; None: as many as pay, by what the target and the drafter declare to cost

    @property
    def shape(self) -> TreeShape:
        """Of a tree that is always the same."""
        return TreeShape.of(self.nodes, min(self.nodes, LEVELS if self.depth is None else self.depth))

    def costs(self, rules: BatchRules) -> TreeCosts | None:
        """None: every tree is as large as it may be."""
        if self.depth is not None:
            return None
        narrow = not rules.exact or facts_of(rules.target).batch_invariant
        drafter = declared_cost(rules.drafter, 1, not rules.sampling.greedy)
        costs = Costs(declared_widths(rules.target) if narrow else 1.0, drafter, ASKING)
        return TreeCosts(Ladder.of(costs, self.nodes))


class TreeDecoding:
    """One request on a target session and a draft session of one row."""

    def __init__(self, rules: BatchRules, plan: TreePlan, runner: StepRunner, trace: Trace) -> None:
        self.rules, self.plan, self.runner, self.trace = rules, plan, runner, trace
        self.drafter, self.node_rule = runner.drafter, tree_rule(rules.verifier)
        self.watch, self.costs, self.sampled = Stopwatch(trace.seconds), plan.costs(rules), SampledOutlook()
        assert isinstance(runner.target, TreeScoring)
        self.target: TreeScoring = runner.target
        self.context = runner.target.context

    def run(self, numbered: Numbered) -> Generator[Event]:
        index, request = numbered
        _check(request)
        self.costs, self.sampled = self.plan.costs(self.rules), SampledOutlook()  # each row learns from itself alone
        row = self.rules.stopping(request).start(request.prompt)
        new = Admission(0, request.prompt, prediction=request.prediction, drafter=request.drafter, owner=request.owner)
        self.runner.target.admit(0, request.prompt)
        self.drafter.admit_all([new])
        self.runner.seeds[0] = request.seed
        self.watch.lap("prefill")
        device = DeviceTrees.of(self.runner, self.rules, self.plan.shape)
        yield from self._on_host(index, row) if device is None else self._on_device(index, row, device)
        self.trace.drafter_error = self.trace.drafter_error or self.drafter.error
        self.trace.endings.append(Ending(index, str(row.finish_reason), row.stop_reason))
        self.runner.target.release(0)
        self.drafter.release(0)

    def _on_host(self, index: int, row: Row) -> Generator[Event]:
        while row.finish_reason is None:
            yield self._step(index, row)

    def _on_device(self, index: int, row: Row, device: DeviceTrees) -> Generator[Event]:
        """A step is launched before the last one was read, unless that one must be the last; without a drafter, one by
        one on the host."""
        began, under_way = timer.now(), device.launch()
        while under_way is not None:
            following = device.launch() if row.left > 1 else None
            under_way.wait()
            self.watch.lap("target")
            self.trace.runs += 1
            self.trace.graphs |= self.runner.captures > 0
            event = self._event(index, row, TreeOutcome.read(under_way))
            self.watch.lap("host")
            yield replace(event, seconds=timer.now() - began)
            began, under_way = timer.now(), None if row.finish_reason is not None else following
        yield from self._on_host(index, row)

    def _step(self, index: int, row: Row) -> Event:
        began = timer.now()
        seeds = self.runner.seeds.to(CPU)
        noise = Silence(seeds) if self.rules.sampling.greedy else Noise(seeds)
        start = int(self.context.lengths[0])
        draft = self._draft(row, noise, start)
        self.watch.lap("draft")
        logits = self.target.score_tree(draft.tree)  # [1, N+1, V]
        self.watch.lap("target")
        self.trace.runs += 1
        verdict = walk(draft, lambda node: self._target(draft.tree, logits, node), self.node_rule, noise, start)
        emitted = [*(draft.tree.tokens[node] for node in verdict.path), verdict.token]
        self.target.commit_path(verdict.path, verdict.token)
        self.drafter.commit(*(torch.tensor(each).to(self.context.device) for each in ([emitted], [len(emitted)])))
        self.watch.lap("accept")
        beside = draft.tree.children(verdict.path[-1] if verdict.path else ROOT)[:1]
        guess = tuple(draft.tree.tokens[node] for node in beside)
        event = self._event(index, row, TreeOutcome(tuple(emitted), verdict.healthy, guess, len(draft.tree)))
        if self.costs is not None:
            self.costs.learn(len(draft.tree), len(emitted))
        if not self.rules.sampling.greedy:
            self._learn(draft, verdict)
        self.watch.lap("host")
        return replace(event, seconds=timer.now() - began)

    def _draft(self, row: Row, noise: Noise, start: int) -> TreeDraft:
        rules = self.rules
        depth = min(self.plan.nodes if self.plan.depth is None else self.plan.depth, row.left - 1)
        if depth < 1 or self.drafter.session is None:
            return NO_TREE
        shared = rules.verifier.shares_noise
        growth = GrowthRules(
            self.plan.nodes, depth, self.runner.target.vocab_size, rules.sampling,
            noise if shared else noise.child("draft"), own_noise=not shared,
            outlook=Outlook() if rules.sampling.greedy else self.sampled.outlook,
            floors=() if self.costs is None else self.costs.floors, ends=row.rules.eos,
        )  # fmt: skip
        device = self.context.device

        def grown(session: DraftSession) -> TreeDraft:
            return grow(ForkedOracle(session, growth, device), growth, start)

        return self.drafter.attempt(grown) or NO_TREE

    def _learn(self, draft: TreeDraft, verdict: TreeVerdict) -> None:
        for node, kept in zip((ROOT, *verdict.path), (*verdict.path, None), strict=True):
            children = draft.tree.children(node)
            if children and (q := draft.probabilities(node)) is not None:
                self.sampled.learn(float(q.max()), kept == children[0])

    def _target(self, tree: TokenTree, logits: Tensor, node: int) -> Tensor | Choices:
        """p behind a node, as plain decoding would have it behind that text."""
        sampling, verifier = self.rules.sampling, self.rules.verifier
        own, none = logits[:, node + 1 : node + 2], logits.new_zeros((1, 0), dtype=torch.int64)
        context = self.context
        if sampling.adjusts and node != ROOT:
            context = context.ahead(torch.tensor([tree.text(node)]).to(context.device))
        if sampling.greedy and verifier.compares:
            return choices(own, sampling, context, none).on(CPU)
        return standardise(own, sampling, context, none).to(CPU)

    def _event(self, index: int, row: Row, step: TreeOutcome) -> Event:
        """What a step gave goes into row and trace."""
        position, accepted = len(row.prompt) + len(row.tokens), len(step.emitted) - 1
        taken = row.push(list(step.emitted))
        if len(taken) > step.healthy:
            reason = fault(self.runner.target, 0, position + step.healthy, self.rules.sampling)
            row.fail(len(taken) - step.healthy, reason)
            taken = taken[: step.healthy]
        record = None
        if taken:
            drafted = (*step.emitted[:-1], *step.beside)
            record = Record(
                index, position, drafted, accepted, step.emitted[-1], (None,) * len(drafted), len(taken), step.nodes
            )
            self.trace.records.append(record)
        return Event(index, tuple(taken), min(accepted, len(taken)), row, record, step.nodes)


def _check(request: Request) -> None:
    """Refuse what a tree does not honour."""
    require(request.source is None, "tree: encoder-decoder models do not run trees of guesses; leave tree out")
    own = {"rule": request.rule, "gamma": request.gamma, "forced": request.forced}
    given = [name for name, value in own.items() if value is not None]
    require(not given, f"tree: requests with a {', '.join(given)} of their own cannot be decoded with trees")


def tree_events(decoding: TreeDecoding, requests: Iterable[Numbered]) -> Generator[Event]:
    """Requests one after another."""
    for numbered in requests:
        yield from decoding.run(numbered)
