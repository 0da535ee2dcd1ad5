"""A plan that trains a draft in a second, a clock that goes by looks, and a diary of what training reports."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

from outrider.training.distill import NoProgress
from outrider.training.distill_plan import DistillPlan
from outrider.training.loop import Budget
from outrider.training.progress import Written

PLAN = DistillPlan(
    text_tokens=1500,
    block=32,
    vocab=64,
    depth=3,
    generate_batch=8,
    budget=Budget(tokens=32 * 4 * 12, batch=4, rate=3e-3),
)
SHORT = replace(PLAN, depth=2, budget=Budget(tokens=32 * 4 * 12, batch=4))


class Clock:
    """Every look takes ``tick`` seconds."""

    def __init__(self, tick: float) -> None:
        self.time, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.time += self.tick
        return self.time


class Log(NoProgress):
    """Writes down what is reported."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.texts: list[Written] = []
        self.reports: list[Any] = []
        self.resumed: list[str] = []

    def writing(self, text: Written) -> None:
        self.texts.append(text)

    def training(self, report: Any) -> None:
        self.reports.append(report)

    def resuming(self, line: str) -> None:
        self.resumed.append(line)


class Pressed(NoProgress):
    """Ctrl-C at the first report of a step from ``step`` on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def training(self, report: Any) -> None:
        if report.step >= self.step:
            signal.raise_signal(signal.SIGINT)
