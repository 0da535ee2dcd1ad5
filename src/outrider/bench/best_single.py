"""``draft="auto"`` beside the best single draft of the same measurement: is choosing among drafts ever worse?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.bench.intervals import Interval, bootstrap, total_ratio
from outrider.trace import finite, ratio

AUTO = "auto"

Work = Sequence[Interval]
"""Tokens and seconds, prompt by prompt."""


@dataclass(frozen=True)
class AutoRow:
    """One task at one temperature. The best single draft is chosen by these very prompts, which favours it."""

    temperature: float
    task: str
    draft: str  # the best single one
    gamma: int | str  # with which it was the best
    auto_gamma: int | str  # with which "auto" was
    ratio: float  # speed of "auto" over its
    interval: Interval  # 95 %, bootstrap over prompts

    def to_json(self) -> dict[str, Any]:
        return {name: finite(value) for name, value in vars(self).items()}


def auto_rows(temperature: float, task: str, work: Mapping[tuple[str, int | str], Work]) -> list[AutoRow]:
    """A row, where "auto" was measured beside others. ``work``: by draft and gamma."""
    quickest = sorted(work, key=lambda way: total_ratio(work[way]), reverse=True)
    auto = next((way for way in quickest if way[0] == AUTO), None)
    best = next((way for way in quickest if way[0] != AUTO), None)
    if auto is None or best is None:
        return []
    found = ratio(total_ratio(work[auto]), total_ratio(work[best]))
    return [AutoRow(temperature, task, *best, auto[1], found, bootstrap(work[auto], work[best]))]
