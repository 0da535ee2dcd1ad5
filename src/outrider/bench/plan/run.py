"""Measures what a plan rests on, predicts every cell, recommends one and runs it beside plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.bench.cells import PLAIN
from outrider.bench.measure import Way, timed_text
from outrider.bench.plan.acceptance import GuessCounts, together
from outrider.bench.plan.check import CheckedCell, check
from outrider.bench.plan.costs import measured_costs, with_slots
from outrider.bench.plan.forecast import (
    GuessPrice,
    PredictedCell,
    PricedDraft,
    Recommendation,
    TargetCosts,
    recommended,
)
from outrider.bench.plan.recording import Recording, price_alone, price_in_batch
from outrider.bench.plan.settings import PlanSettings
from outrider.drafters import Nothing
from outrider.errors import require
from outrider.llm import LLM

Progress = Callable[[str, float], None]


@dataclass
class PlanRun:
    """A plan as it is measured. Whatever ends it early, what was measured until then is here."""

    engines: Mapping[str, LLM]  # by the draft's name, all on one target
    tasks: Mapping[str, Sequence[Sequence[int]]]  # token ids of the prompts
    settings: PlanSettings
    progress: Progress = lambda what, share: None
    costs: dict[int, TargetCosts] = field(default_factory=dict)  # by batch
    recordings: list[Recording] = field(default_factory=list)
    prices: dict[tuple[str, int], GuessPrice] = field(default_factory=dict)  # by draft and batch
    cells: list[PredictedCell] = field(default_factory=list)
    recommendations: list[Recommendation] = field(default_factory=list)
    checked: list[CheckedCell] = field(default_factory=list)
    prompts_done: int = 0
    interrupted: bool = False
    steps_done: int = 0

    def __post_init__(self) -> None:
        require(len(self.engines) > 0, "drafts is empty; name at least one")
        require(len(self.prompts) > 0, "prompts are empty; give at least one")
        taken = [name for name in ("none", PLAIN) if name in self.engines]
        require(not taken, f"draft {' '.join(taken)!r} is what others are compared with; leave it out")

    @property
    def llm(self) -> LLM:
        return next(iter(self.engines.values()))

    @property
    def prompts(self) -> list[list[int]]:
        return [list(prompt) for prompts in self.tasks.values() for prompt in prompts]

    def run(self) -> PlanRun:
        """Measure, predict and compare; Ctrl-C ends the part it falls into and everything that would follow."""
        try:
            self._measure()
        except KeyboardInterrupt:
            self.interrupted = True
        self.cells = self._predicted()
        self.recommendations = recommended(self.cells)
        if not self.interrupted:
            chosen = self._to_check()
            self.checked, self.interrupted = check(
                self.engines, self.prompts, chosen, self.settings, self._advance
            )  # fmt: skip
        return self

    def _measure(self) -> None:
        for batch in dict.fromkeys((1, *self.settings.batches)):  # guesses are recorded one request at a time
            self.costs[batch] = measured_costs(self.llm, self.prompts, batch, self.settings, self._advance)
        self._record()
        for batch in self.settings.batches:
            for draft, engine in self.engines.items():
                if batch > 1:
                    counts = {gamma: together(self.counts(draft, gamma)) for gamma in self.settings.recorded}
                    priced = price_in_batch(engine, self.prompts, counts, self.costs[batch], self.settings)
                    self.prices[draft, batch] = priced
                    self._advance(f"price of a guess, {batch} at a time")

    def _record(self) -> None:
        ways = {PLAIN: Way(with_slots(self.llm, Nothing(), 1))}
        names = {(d, g): f"{d}, gamma {g}" for d in self.engines for g in self.settings.recorded}
        ways |= {name: Way(self.engines[draft], draft, gamma) for (draft, gamma), name in names.items()}
        for name, way in ways.items():  # not counted
            given = {"gamma": way.gamma} if name != PLAIN else {}
            way.engine.generate(self.prompts[0], **given, **{**self.settings.options, "max_new_tokens": 8})
        for task, prompts in self.tasks.items():
            for prompt in prompts:
                cells = timed_text(
                    ways, list(prompt), self.settings.options, self.settings.repeats, self.prompts_done
                )  # fmt: skip
                self.recordings += [Recording.of(d, g, task, cells, name) for (d, g), name in names.items()]
                self.prompts_done += 1
                self._advance(f"acceptance, {task}")

    def counts(self, draft: str, gamma: int, task: str | None = None) -> list[GuessCounts]:
        """Acceptance with this gamma, prompt by prompt."""
        recorded = self.settings.recorded_for(gamma)
        return [
            r.counts(gamma)
            for r in self.recordings
            if r.draft == draft and r.gamma == recorded and task in (None, r.task)
        ]

    def fates(self, draft: str, task: str | None) -> list[GuessCounts]:
        """Acceptance with the largest gamma as it was seen, prompt by prompt."""
        most = self.settings.most
        return [r.fates for r in self.recordings if r.draft == draft and r.gamma == most and task in (None, r.task)]

    def _predicted(self) -> list[PredictedCell]:
        """Of all batches and drafts whose prices are known."""
        cells = []
        for draft in self.engines:
            own = [r for r in self.recordings if r.draft == draft]
            if own:
                self.prices[draft, 1] = price_alone(own, self.costs[1])
        for batch in self.settings.batches:
            for draft in self.engines:
                if (draft, batch) not in self.prices:
                    continue
                priced = PricedDraft(self.costs[batch], self.prices[draft, batch])
                for gamma in self.settings.gammas:
                    counts = self.counts(draft, gamma)
                    value = priced.speedup(together(counts))
                    cells.append(PredictedCell(draft, gamma, batch, value, priced.interval(counts)))
        return cells

    def _to_check(self) -> list[PredictedCell]:
        """The winner of every batch, and with the first batch every draft with the gammas that were asked for."""
        wanted = {(r.draft, r.gamma, r.batch) for r in self.recommendations if r.speculates}
        first = self.settings.batches[0]
        wanted |= {(draft, gamma, first) for draft in self.engines for gamma in self.settings.checks}
        return [cell for cell in self.cells if (cell.draft, cell.gamma, cell.batch) in wanted]

    def _advance(self, what: str) -> None:
        self.steps_done += 1
        several = sum(batch > 1 for batch in self.settings.batches)
        batches = len(dict.fromkeys((1, *self.settings.batches)))
        total = batches * (self.settings.turns + 1) + 2 * len(self.prompts) + several * (len(self.engines) + 4)
        self.progress(what, min(1.0, self.steps_done / total))

    def to_json(self) -> dict[str, Any]:
        """The figures of a plan file."""
        tasks = [*self.tasks, None]
        return {
            "costs": [
                {"batch": c.batch, "plain_step_ms": 1000 * c.plain_seconds, "turns": c.turns,
                 "widths": {str(width): cost for width, cost in c.widths.items()}}
                for c in self.costs.values()
            ],
            "acceptance": [
                _acceptance_json(draft, task or "all", found)
                for draft in self.engines for task in tasks
                if (found := self.fates(draft, task))
            ],
            "prices": [
                {"draft": draft, "batch": batch, "asking": price.asking, "guess": price.guess}
                for (draft, batch), price in sorted(self.prices.items())
            ],
            "cells": [cell.to_json() for cell in self.cells],
            "recommended": [one.to_json() for one in self.recommendations],
            "checks": [one.to_json() for one in self.checked],
            "prompts_done": self.prompts_done,
            "prompts_wanted": len(self.prompts),
            "interrupted": self.interrupted,
        }  # fmt: skip


def _acceptance_json(draft: str, task: str, counts: Sequence[GuessCounts]) -> dict[str, Any]:
    all_ = together(counts)
    return {
        "draft": draft, "task": task, "prompts": len(counts), "gamma": all_.gamma, "runs": all_.runs,
        "alpha": all_.alpha, "by_number": all_.chances, "made": all_.shares,
        "tokens_per_run": all_.tokens / max(1, all_.runs),
    }  # fmt: skip
