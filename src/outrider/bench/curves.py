"""Times a step against the number of guesses, the context length and the number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from outrider.bench.gpu import GREEDY, StandingRows, StepSetting
from outrider.bench.timing import free_memory, timed
from outrider.drafters import ModelDrafter, Nothing


def by_gamma(setting: StepSetting, gammas: Iterable[int]) -> Iterator[dict[str, Any]]:
    """One session wide enough for the most guesses, so that only the draft runs grow."""
    gammas = list(gammas)
    rows_at = StandingRows(setting, ModelDrafter(setting.draft), setting.shape(width=max(gammas) + 1))
    for gamma in gammas:
        yield {"gamma": gamma, **_queued(rows_at, gamma, setting.context)}


def by_context(setting: StepSetting, lengths: Iterable[int], speculative: bool) -> Iterator[dict[str, Any]]:
    """One buffer that holds the longest context: shorter ones must not pay for it."""
    lengths = list(lengths)
    capacity = 1 << (max(lengths) + 512).bit_length()
    drafter = ModelDrafter(setting.draft) if speculative else Nothing()
    rows_at = StandingRows(setting, drafter, setting.shape(capacity=capacity))
    gamma = setting.gamma if speculative else 0
    for length in lengths:
        yield {"context": length, "capacity": capacity, **_queued(rows_at, gamma, length)}


def by_rows(setting: StepSetting, counts: Iterable[int], speculative: bool) -> Iterator[dict[str, Any]]:
    """A batch of each size, all rows active."""
    for rows in counts:
        drafter = ModelDrafter(setting.draft) if speculative else Nothing()
        rows_at = StandingRows(setting, drafter, setting.shape(), rows)
        gamma = setting.gamma if speculative else 0
        yield {"rows": rows, **_queued(rows_at, gamma, setting.context)}
        del rows_at
        free_memory()  # the next batch is twice as large


def _queued(rows_at: StandingRows, gamma: int, length: int) -> dict[str, float]:
    setting = replace(rows_at.setting, repeats=min(3, rows_at.setting.repeats))
    return timed(
        lambda: rows_at.runner.launch(GREEDY, gamma), setting.device, setting.repeats, setting.inner,
        lambda: rows_at.stand_at(length),
    )  # fmt: skip
