"""Medians with their spread, on a GPU as on a CPU, and a result file that survives whatever comes later."""

from __future__ import annotations

import gc
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from outrider.runtime import timer
from outrider.trace import strict_json


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def spread(times: list[float]) -> dict[str, float]:
    """Median, smallest and largest, and how many."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times), "n": len(times)}


def timed(
    work: Callable[[], object], device: torch.device, repeats: int, inner: int, before: Callable[[], object]
) -> dict[str, float]:
    """Milliseconds of one ``work``: ``inner`` in a row, waited for at the end, ``repeats`` times.

    ``before`` runs outside the clock ahead of every repeat; one whole repeat is not counted.
    """
    times = []
    for _ in range(repeats + 1):
        before()
        settle(device)
        began = timer.now()
        for _ in range(inner):
            work()
        settle(device)
        times.append((timer.now() - began) * 1000 / inner)
    return spread(times[1:])


@dataclass
class Report:
    """Results by section, written to a file after each one."""

    path: Path | None
    budget: float = float("inf")  # seconds after which no further section is begun
    results: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=timer.now)
    interrupted: bool = False

    def section(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a section; what goes wrong in it is recorded, and the next one runs with the memory it held."""
        spent = self.spent
        if self._late(name):
            return None
        try:
            self.results[name] = work()
        except Exception as error:
            self.results[name] = _failure(error)
        self._done(name, spent)
        return self.results[name]

    def series(self, name: str, points: Iterator[dict[str, Any]]) -> None:
        """A section that gives one point after the other: each is written when it comes, and stays whatever follows."""
        spent = self.spent
        if self._late(name):
            return
        found = self.results[name] = []
        try:
            for point in points:
                found.append(point)
                self.save()
                if self.spent > self.budget:
                    self.results[f"{name} after {len(found)} points"] = self._skipped()
                    break
        except Exception as error:
            self.results[f"{name} after {len(found)} points"] = _failure(error)
        self._done(name, spent)

    @property
    def spent(self) -> float:
        return timer.now() - self.began

    def save(self) -> None:
        if self.path is not None:
            self.path.write_text(strict_json(self.results, indent=1, default=str) + "\n", encoding="utf-8")

    def _late(self, name: str) -> bool:
        if self.spent > self.budget:
            self.results[name] = self._skipped()
            self.save()
            return True
        return False

    def _skipped(self) -> dict[str, str]:
        return {"skipped": f"{self.spent:.0f} s are spent of {self.budget:.0f}"}

    def _done(self, name: str, spent: float) -> None:
        self.results.setdefault("seconds", {})[name] = round(self.spent - spent, 2)
        self.save()
        free_memory()
        brief = strict_json(self.results[name], default=str)[:600]
        print(f"[{self.spent:6.1f} s] {name}: {brief}", file=sys.stderr, flush=True)  # noqa: T201


def free_memory() -> None:
    """Sessions and their graphs refer to each other in circles: without this they wait for the collector."""
    gc.collect()
    if torch.cuda.is_available():
        with suppress(RuntimeError):  # a GPU that has failed refuses this, too; what was measured is already written
            torch.cuda.empty_cache()


def _failure(error: Exception) -> dict[str, str]:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        remedy = "no GPU memory left for this section; end other programs on the GPU, or ask for --size tiny"
        return {"error": f"{remedy} ({' '.join(str(error).split())[:200]})"}
    return {"error": f"{type(error).__name__}: {error}"[:500], "trace": traceback.format_exc()}
