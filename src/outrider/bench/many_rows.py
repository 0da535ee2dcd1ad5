"""A request's tokens alone, in batches, with 1 to 8 guesses, and prefilled in other chunks.

And what it costs that they stay the same: a step against one whose products may split their sums as is fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from outrider.bench.gpu import COUPLED, GREEDY, StandingRows, StepSetting
from outrider.bench.load import DecoderUnderLoad
from outrider.decoding.step_runner import Rule
from outrider.drafters import Nothing
from outrider.drafters.known_text import KnownText
from outrider.models.transformers.model import HuggingFaceModel

BATCHES, GAMMAS, CHUNKS = (2, 7, 16, 64), tuple(range(1, 9)), (64, 256, 1024)
_SPOILED = 0.3
"""Share of guesses that are wrong, so that every number of accepted ones occurs."""

Prompts = Sequence[tuple[int, ...]]


def in_batches(target: HuggingFaceModel, prompts: Prompts, tokens: int, compared: int = 16) -> dict[str, Any]:
    """Tokens that are others than those of the same request alone, among ``compared`` requests, for each change."""
    prompts = sorted(prompts, key=len, reverse=True)  # the order of slots, by which a known text goes
    result: dict[str, Any] = {}
    for name, rule in (("temperature 0", GREEDY), ("temperature 1", COUPLED)):
        plain = DecoderUnderLoad(target, Nothing(), rule, 0, max(GAMMAS) + 1)
        alone = [plain.texts([prompt], tokens, row)[0][0] for row, prompt in enumerate(prompts[:compared])]
        for change, first, texts in _changes(target, plain, rule, prompts, alone, tokens):
            own = alone[first : first + len(texts)]
            part = result.setdefault(f"{name}, {change}", {"tokens": 0, "mismatches": 0})
            part["tokens"] += sum(map(len, own))
            part["mismatches"] += sum(
                a != b for x, y in zip(own, texts, strict=False) for a, b in zip(x, y, strict=True)
            )
        plain.pool.clear()
    return result


def _changes(
    target: HuggingFaceModel, plain: DecoderUnderLoad, rule: Rule, prompts: Prompts, alone: list[list[int]], tokens: int
) -> Iterator[tuple[str, int, list[list[int]]]]:
    """(what was changed, the first request's number, texts); texts beyond the requests run alone are nobody's."""
    compared = len(alone)
    for batch in BATCHES:
        for first in range(0, max(compared - batch, 0) + 1, batch):
            texts = plain.texts(prompts[first : first + batch], tokens, first)[0]
            yield f"batch of {min(batch, len(texts))}", first, texts[:compared]
    some = prompts[:compared]
    known = _table([[*prompt, *text] for prompt, text in zip(some, alone, strict=True)])
    for gamma in GAMMAS:
        guessing = DecoderUnderLoad(target, KnownText(known, _SPOILED), rule, gamma, max(GAMMAS) + 1)
        yield f"{gamma} guesses in a batch of {compared}", 0, guessing.texts(some, tokens)[0]
        guessing.pool.clear()
    usual = target.engine.prefill_tokens
    try:
        for chunk in CHUNKS:
            target.engine.prefill_tokens = chunk
            yield f"prefilled in chunks of {chunk}", 0, [plain.texts(some[:1], tokens)[0][0]]
    finally:
        target.engine.prefill_tokens = usual


def _table(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def cost_of_invariance(setting: StepSetting, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Milliseconds of a plain step of so many rows, with and without split sums; products alone are chosen freely."""
    engine = setting.target.engine
    for count in counts:
        point: dict[str, Any] = {"rows": count}
        for name, invariant in (("invariant", True), ("free", False)):
            kept, engine.no_split_k = engine.no_split_k, invariant
            try:
                rows_at = StandingRows(setting, Nothing(), setting.shape(width=1), rows=count)
                point[name] = rows_at.times(GREEDY, 0, setting.context)["queued"]
            finally:
                engine.no_split_k = kept
        point["cost"] = point["invariant"]["median"] / point["free"]["median"] - 1
        yield point
