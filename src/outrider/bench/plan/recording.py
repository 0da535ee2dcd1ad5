"""Runs with a fixed gamma: what acceptance is counted in, and what the price of a guess follows from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.bench.cells import PLAIN, Cell
from outrider.bench.plan.acceptance import DraftedRun, GuessCounts, counted, replayed, runs_of, together
from outrider.bench.plan.costs import StepTime, decoding_seconds, with_slots
from outrider.bench.plan.forecast import GuessPrice, TargetCosts, fitted
from outrider.bench.plan.settings import PlanSettings
from outrider.drafters import Nothing
from outrider.llm import LLM
from outrider.trace import ratio

SAMPLED = 32
"""Tokens of each text where several requests are timed for the price of a guess."""

Observed = tuple[float, float, float]
"""Steps in which a drafter was asked, its guesses, and what both took in plain steps."""


@dataclass(frozen=True)
class Recording:
    """One prompt with one drafter and gamma, beside the same prompt decoded plainly in the same turn."""

    draft: str
    gamma: int
    task: str
    runs: tuple[DraftedRun, ...]
    fates: GuessCounts  # of all guesses, also of those behind the end of the text: what acceptance is told by
    seconds: float
    drafting: float  # of these, in the drafter, as far as a clock can tell it from what a plain step does there
    plain_step: float  # seconds of a plain step

    @staticmethod
    def of(draft: str, gamma: int, task: str, cells: Mapping[str, Cell], name: str) -> Recording:
        ours, plain = cells[name], cells[PLAIN]
        trace, step = ours.outputs[0].trace, StepTime.of(plain.outputs[0])
        drafting = trace.seconds["draft"] - trace.runs * step.draft
        runs, plainly = runs_of(trace.records), plain.seconds / max(1, plain.outputs[0].trace.runs)
        fates = counted((DraftedRun(len(r.drafted), r.accepted) for r in trace.records), gamma)
        return Recording(draft, gamma, task, runs, fates, ours.seconds, drafting, plainly)

    def counts(self, gamma: int) -> GuessCounts:
        """Acceptance as it would be with ``gamma``."""
        return counted(replayed(self.runs, self.gamma, gamma), gamma)


def price_alone(recordings: Sequence[Recording], costs: TargetCosts) -> GuessPrice:
    """One request at a time: what steps took beyond the target's own runs, over all prompts of each gamma."""
    observed = []
    for gamma in dict.fromkeys(r.gamma for r in recordings):
        found = [r for r in recordings if r.gamma == gamma and r.plain_step > 0]
        counts = together([r.counts(gamma) for r in found])
        took = math.fsum(r.seconds / r.plain_step for r in found)
        drafting = math.fsum(r.drafting / r.plain_step for r in found)
        observed.append(beyond_runs(counts, costs, counts.runs, took, drafting))
    return fitted(observed)


def beyond_runs(counts: GuessCounts, costs: TargetCosts, steps: int, took: float, drafting: float) -> Observed:
    """What the drafter added to steps that took so many plain steps: the rest, and at least its own time."""
    anybody = [1 - (1 - share) ** costs.batch for share in counts.shares]
    return steps, steps * math.fsum(anybody), max(took - steps * costs.run(anybody), drafting)


def price_in_batch(
    llm: LLM, prompts: Sequence[Sequence[int]], counts: Mapping[int, GuessCounts], costs: TargetCosts,
    settings: PlanSettings,
) -> GuessPrice:  # fmt: skip
    """Several requests at a time. Rows do not end by themselves, so that the batch stays full."""
    batch = costs.batch
    given = [list(prompts[row % len(prompts)]) for row in range(batch)]
    longest = min(SAMPLED, int(settings.options.get("max_new_tokens", SAMPLED)))
    options = {**settings.options, "max_new_tokens": longest, "eos": ()}
    engine, plain = with_slots(llm, llm.drafter, batch), with_slots(llm, Nothing(), batch)
    engine.generate(given, gamma=max(counts), **{**options, "max_new_tokens": 4})  # makes ready
    observed = []
    for gamma, seen in counts.items():
        step = StepTime.of(plain.generate(given, gamma=0, **options)[0])
        output = engine.generate(given, gamma=gamma, **options)[0]
        steps, took = output.trace.runs, ratio(decoding_seconds(output), step.whole)
        drafting = ratio(output.trace.seconds["draft"] - steps * step.draft, step.whole)
        observed.append(beyond_runs(seen, costs, steps, took, drafting))
    return fitted(observed)
