"""Predicted cells run against plain decoding, in the same process and in turns: is the prediction right?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outrider.bench.cells import PLAIN
from outrider.bench.intervals import bootstrap, total_ratio
from outrider.bench.measure import Way, timed_text
from outrider.bench.plan.costs import decoding_seconds, with_slots
from outrider.bench.plan.forecast import Interval, PredictedCell
from outrider.bench.plan.settings import PlanSettings
from outrider.decoding.loop import bucket
from outrider.drafters import Nothing
from outrider.llm import LLM
from outrider.trace import finite, ratio

Work = tuple[float, float]
"""Tokens and the seconds they took."""


@dataclass(frozen=True)
class CheckedCell:
    """What was predicted, what was measured, and by how much the prediction is off."""

    draft: str
    gamma: int
    batch: int
    predicted: float
    measured: float
    interval: Interval  # of the measured one: 95 %, bootstrap over prompts, or over calls with several requests
    same_text: int  # texts that equal plain decoding's
    texts: int

    @property
    def error_percent(self) -> float:
        """Above 0: it was slower than predicted."""
        return 100 * (ratio(self.predicted, self.measured) - 1)

    def to_json(self) -> dict[str, Any]:
        return {k: finite(v) for k, v in asdict(self).items()} | {"error_percent": finite(self.error_percent)}


@dataclass
class _Compared:
    """Work of a cell and of plain decoding, prompt by prompt."""

    ours: list[Work]
    plain: list[Work]
    same: int = 0
    texts: int = 0

    def checked(self, cell: PredictedCell) -> CheckedCell:
        measured = ratio(total_ratio(self.ours), total_ratio(self.plain))
        interval = bootstrap(self.ours, self.plain)
        return CheckedCell(
            cell.draft, cell.gamma, cell.batch, cell.speedup, measured, interval, self.same, self.texts
        )  # fmt: skip


def check(
    engines: Mapping[str, LLM], prompts: Sequence[Sequence[int]], cells: Sequence[PredictedCell],
    settings: PlanSettings, advance: Callable[[str], None],
) -> tuple[list[CheckedCell], bool]:  # fmt: skip
    """Every cell beside plain decoding -> what was found, and whether Ctrl-C ended it before all prompts were run."""
    found: list[CheckedCell] = []
    for batch in dict.fromkeys(cell.batch for cell in cells):
        these = [cell for cell in cells if cell.batch == batch]
        compared = {cell: _Compared([], []) for cell in these}
        run = _alone if batch == 1 else _together
        interrupted = False
        try:
            run(engines, prompts, compared, settings, advance)
        except KeyboardInterrupt:
            interrupted = True
        found += [work.checked(cell) for cell, work in compared.items() if work.ours]
        if interrupted:
            return found, True
    return found, False


def _alone(
    engines: Mapping[str, LLM], prompts: Sequence[Sequence[int]], compared: Mapping[PredictedCell, _Compared],
    settings: PlanSettings, advance: Callable[[str], None],
) -> None:  # fmt: skip
    first = next(iter(engines.values()))
    names = {cell: f"{cell.draft}, gamma {cell.gamma}" for cell in compared}
    ways = {PLAIN: Way(with_slots(first, Nothing(), 1))}
    ways |= {name: Way(engines[cell.draft], cell.draft, cell.gamma) for cell, name in names.items()}
    if first.graphs:  # the first text of a gamma and a capacity records CUDA graphs
        for uncounted in of_each_capacity(prompts, settings.options["max_new_tokens"]):
            timed_text(ways, uncounted, settings.options, 1, 0)
            advance("recording CUDA graphs")
    for turn, prompt in enumerate(prompts):
        cells = timed_text(ways, list(prompt), settings.options, settings.repeats, turn)
        for cell, work in compared.items():
            ours, plain = cells[names[cell]], cells[PLAIN]
            work.ours.append(ours.work)
            work.plain.append(plain.work)
            work.same, work.texts = work.same + (ours.tokens == plain.tokens), work.texts + 1
        advance("predicted and measured")


def of_each_capacity(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """One prompt for every capacity that texts with so many new tokens need."""
    return list({bucket(len(prompt) + tokens): list(prompt) for prompt in prompts}.values())


def _together(
    engines: Mapping[str, LLM], prompts: Sequence[Sequence[int]], compared: Mapping[PredictedCell, _Compared],
    settings: PlanSettings, advance: Callable[[str], None],
) -> None:  # fmt: skip
    """Three calls of twice as many requests as there are rows, so that rows that end are taken up by others."""
    batch = next(iter(compared)).batch
    first = next(iter(engines.values()))
    given = [list(prompts[row % len(prompts)]) for row in range(2 * batch)]
    plain = with_slots(first, Nothing(), batch)
    ways = {cell: with_slots(engines[cell.draft], engines[cell.draft].drafter, batch) for cell in compared}
    exact = {name: value for name, value in settings.options.items() if not name.startswith("draft_")}
    for turn in range(4):  # the first warms up
        texts = plain.generate(given, gamma=0, **exact)
        for cell, work in compared.items():
            ours = ways[cell].generate(given, gamma=cell.gamma, **settings.options)
            if turn > 0:
                work.ours.append(_work(ours))
                work.plain.append(_work(texts))
                work.same += sum(a.tokens == b.tokens for a, b in zip(ours, texts, strict=True))
                work.texts += len(ours)
        advance(f"predicted and measured, {batch} at a time")


def _work(outputs: Sequence[Any]) -> Work:
    return math.fsum(len(output.tokens) for output in outputs), decoding_seconds(outputs[0])
