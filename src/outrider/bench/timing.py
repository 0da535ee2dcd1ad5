"""Medians with their spread, on a GPU as on a CPU, and a result file that survives whatever comes later."""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


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
        began = time.perf_counter()
        for _ in range(inner):
            work()
        settle(device)
        times.append((time.perf_counter() - began) * 1000 / inner)
    return spread(times[1:])


@dataclass
class Report:
    """Results by section, written to a file after each one."""

    path: Path | None
    budget: float = float("inf")  # seconds after which no further section is begun
    results: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    def section(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a section; what goes wrong in it is recorded, and the next one runs."""
        spent = time.perf_counter() - self.began
        if spent > self.budget:
            self.results[name] = {"skipped": f"{spent:.0f} s are spent of {self.budget:.0f}"}
            self.save()
            return None
        try:
            self.results[name] = work()
        except torch.cuda.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            remedy = "no GPU memory left for this section; end other programs on the GPU, or ask for --size tiny"
            self.results[name] = {"error": f"{remedy} ({' '.join(str(error).split())[:200]})"}
        except Exception as error:
            self.results[name] = {"error": f"{type(error).__name__}: {error}"[:500], "trace": traceback.format_exc()}
        self.results.setdefault("seconds", {})[name] = round(time.perf_counter() - self.began - spent, 2)
        self.save()
        brief = json.dumps(self.results[name], default=str)[:600]
        print(f"[{time.perf_counter() - self.began:6.1f} s] {name}: {brief}", file=sys.stderr, flush=True)  # noqa: T201
        return self.results[name]

    def save(self) -> None:
        if self.path is not None:
            self.path.write_text(json.dumps(self.results, indent=1, default=str) + "\n", encoding="utf-8")
