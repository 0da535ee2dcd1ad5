"""What all experiments share: how much is asked for, the engines, loaded once each, and the clock of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import outrider
from outrider.bench.measure import MeasuredRow, MeasureSettings, measure
from outrider.bench.pair import inflated
from outrider.bench.prompts import SAMPLE
from outrider.core.protocols import Drafter
from outrider.drafters import Cascade, Mixture, ModelDrafter, Ngram, NgramTable
from outrider.errors import require
from outrider.llm import LLM
from outrider.models.hub import pairs
from outrider.models.hub.loading import choose_device
from outrider.paper import texts

TRANSLATOR, CONTINUER, CHATTER = "t5-ende", "gpt-small", "smollm2-135m"
INFLATED = f"{CHATTER} inflated to 8B"  # on a GPU: the same function at the cost of eight billion weights


@dataclass(frozen=True)
class Amount:
    """How much of everything: enough to see, or enough to rely on."""

    prompts: int  # of each task
    tokens: int  # of each text
    repeats: int  # timed runs of each text; medians count
    seed: int = 0

    @staticmethod
    def of(quick: bool, seed: int = 0) -> Amount:
        return Amount(4, 32, 1, seed) if quick else Amount(16, 96, 3, seed)


@dataclass
class Lab:
    """Targets by name, with the drafts that the papers pair them with."""

    amount: Amount
    device: str = "auto"
    dtype: str = "auto"
    _engines: dict[str, LLM] = field(default_factory=dict, repr=False)

    def engine(self, target: str) -> LLM:
        """A target with its own draft, for one request at a time as in the papers."""
        if target not in self._engines:
            self._engines[target] = self._inflated() if target == INFLATED else self._loaded(target)
        return self._engines[target]

    def _loaded(self, target: str) -> LLM:
        return outrider.load(target, device=self.device, dtype=self.dtype, slots=1)

    def _inflated(self) -> LLM:
        made = inflated(CHATTER, None, torch.device(choose_device(self.device)), self.dtype)
        return LLM(made.loaded, made.drafter, slots=1)

    @property
    def gpu(self) -> bool:
        return choose_device(self.device).startswith("cuda")

    def forget(self, target: str) -> None:
        """It is not asked again soon, and holds memory that others need."""
        self._engines.pop(target, None)

    def drafts(self, target: str) -> dict[str, Drafter]:
        """What Table 3 asks about: counted tables where the pair has them, and its draft."""
        own = self.engine(target).drafter
        if target == INFLATED:
            return {"head": own}
        if isinstance(own, Mixture):
            return {own.first.name: own.first, "head": own.second}
        folder = pairs.find(target)
        require(folder is not None, f"{target} is no pair and has no head: there is no draft to measure")
        assert folder is not None
        tables = {name: table(folder / f"{name}.safetensors", name) for name in ("unigram", "bigram")}
        return {**tables, "draft": own}

    def hierarchy(self, target: str) -> dict[str, Drafter]:
        """A bigram table below the pair's draft, both ways: asked for every run of the draft, and once."""
        own = self.engine(target).drafter
        lower = self.drafts(target)["bigram"]
        assert isinstance(own, ModelDrafter)
        return {"hierarchy": Cascade(lower, own), "hierarchy, Algorithm 3": Cascade(lower, own, once=True)}

    def prompts(self, target: str) -> list[Any]:
        """What a target is asked: sentences, beginnings, or questions in its chat format."""
        return self._prompts[CHATTER if target == INFLATED else target]

    @cached_property
    def _prompts(self) -> dict[str, list[Any]]:
        most = self.amount.prompts
        asked = [text for task in SAMPLE.values() for text in task[: max(1, most // 8)]]
        return {
            TRANSLATOR: [source for source, _ in texts.TRANSLATIONS[:most]],
            CONTINUER: list(texts.BEGINNINGS[:most]),
            CHATTER: [self.chat(text) for text in asked[: 2 * most]],
        }

    def chat(self, text: str) -> Any:
        return self.engine(CHATTER).chat_prompt([{"role": "user", "content": text}])

    def timed(
        self, target: str, drafts: Mapping[str, Drafter], gammas: Sequence[int | str], temperature: float,
        prompts: Sequence[Any] | None = None, **options: Any,
    ) -> list[MeasuredRow]:  # fmt: skip
        """Plain and speculative in one run, in turns; a row for every draft and gamma."""
        engine = self.engine(target)
        engines = {name: engine.with_draft(drafter) for name, drafter in drafts.items()}
        settings = MeasureSettings(
            (temperature,), self.amount.repeats,
            {"max_new_tokens": self.amount.tokens, "seed": self.amount.seed, **options}, tuple(gammas),
        )  # fmt: skip
        figures = measure(engines, {"prompts": prompts or self.prompts(target)}, settings)
        if figures.interrupted:  # a unit is whole or not there
            raise KeyboardInterrupt
        return [row for row in figures.rows if row.task == "all"]


def table(path: Path, name: str) -> Drafter:
    """Counts that came with a pair."""
    drafter = Ngram(NgramTable.load(path))
    drafter.name = name
    return drafter
