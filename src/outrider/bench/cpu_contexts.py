"""Prefill and decoding of engines at fixed context lengths: prompts of exactly so many tokens, and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from outrider.bench.cpu_rows import EngineResults
from outrider.trace import finite, ratio

PLACE = "context"
"""The task that texts at context lengths are filed under, with the length as their number."""


@dataclass(frozen=True)
class ContextRow:
    """One way of decoding behind a prompt of one length."""

    way: str
    context: int  # tokens of the prompt
    prefill_seconds: float | None  # to the first token
    prefill_tokens_per_second: float | None
    tokens_per_second: float | None  # behind the first token
    over_shortest: float | None  # that speed over the one behind the shortest prompt


def context_prompt(prompts: Sequence[Sequence[int]], length: int) -> list[int]:
    """The prompts one behind the other, again and again, up to a length."""
    return list(islice(cycle([token for prompt in prompts for token in prompt]), length))


def context_rows(results: EngineResults) -> list[ContextRow]:
    found = []
    for way, texts in results.texts(0.0, PLACE).items():
        speeds = {length: ratio(*texts[length].middle.work) for length in sorted(texts)}
        shortest = next(iter(speeds.values()))
        for length, speed in speeds.items():
            seconds = texts[length].middle.first_seconds
            found.append(
                ContextRow(
                    way,
                    length,
                    finite(seconds),
                    finite(ratio(length, seconds)),
                    finite(speed),
                    finite(ratio(speed, shortest)),
                )
            )
    return found
