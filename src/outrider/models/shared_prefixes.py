"""Prefix cache: what slots still hold of earlier texts is copied for prompts that begin alike, and not run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.core.protocols import Admission

LEAST = 16
"""Tokens that are worth copying."""


def shared_prefixes(
    prompts: Mapping[int, Sequence[int]], texts: Sequence[Sequence[int]], known: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """For prompts by row: the slot whose text has the longest beginning in common with each, and how long it is.

    Of each slot's text the first ``known`` tokens are in the KV cache. At least one token of a prompt is left to be
    run, beside the last, which the first step runs: its state is what a draft begins with.
    """
    found = {}
    for row, prompt in prompts.items():
        most = [min(len(prompt) - 2, count) for count in known]
        shared = [_common(prompt[:count], text) if count > 0 else 0 for text, count in zip(texts, most, strict=True)]
        source = max(range(len(shared)), key=lambda slot: (shared[slot], slot == row))
        if shared[source] >= LEAST:
            found[row] = (source, shared[source])
    return found


def repeated_prompts(admissions: Sequence[Admission]) -> dict[int, list[int]]:
    """Rows whose prompt is also that of an earlier admission, by the row of that one: several choices of one prompt."""
    first: dict[tuple[int, ...], int] = {}
    repeated: dict[int, list[int]] = {}
    for new in admissions:
        if new.source is None and (row := first.setdefault(tuple(new.prompt), new.row)) != new.row:
            repeated.setdefault(row, []).append(new.row)
    return repeated


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens at the beginning that are the same."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(place for place in range(length) if one[place] != other[place])
