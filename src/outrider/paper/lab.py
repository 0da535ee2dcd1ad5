"""What all experiments share: how much is asked for, the engines, loaded once each, and the clock of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import torch

import outrider
from outrider.bench.cells import PLAIN, Cell
from outrider.bench.measure import MeasuredRow, MeasureSettings, measure, way_name
from outrider.bench.plan.costs import measured_costs
from outrider.bench.plan.forecast import TargetCosts
from outrider.bench.plan.settings import PlanSettings
from outrider.bench.prompts import SAMPLE
from outrider.core.protocols import Drafter
from outrider.core.sampling import Sampling
from outrider.drafters import Cascade, Mixture, ModelDrafter, Ngram, NgramTable
from outrider.errors import require
from outrider.llm import LLM
from outrider.models.hub import pairs
from outrider.models.hub.loading import choose_device
from outrider.paper import texts
from outrider.paper.data import OwnTexts, Pair, spread
from outrider.paper.distributions import Means, places
from outrider.paper.texts import Program
from outrider.trace import ratio

TRANSLATOR, CONTINUER, CHATTER = "t5-ende", "gpt-small", "smollm2-135m"
SUMMARISER = f"{CHATTER}, summaries"  # the chat model again, asked to summarise
INFLATED = f"{CHATTER} inflated to 8B"  # on a GPU: the same function at the cost of eight billion weights

_COUNTED = 2000
"""Texts that an n-gram table is counted on at most."""
_WARM_UP = 2
"""Turns of every width beyond the repeats: a cost is a median of ratios."""


@dataclass(frozen=True)
class Amount:
    """How much of everything: enough to see, or enough to rely on."""

    prompts: int  # of each task
    tokens: int  # of each text
    repeats: int  # timed runs of each text; medians count
    seed: int = 0
    samples: int = 1  # texts of a prompt where quality is that of samples

    @staticmethod
    def of(quick: bool, seed: int = 0, prompts: int | None = None, samples: int | None = None) -> Amount:
        found = Amount(4, 32, 1, seed, 2) if quick else Amount(16, 64, 3, seed, 4)
        return Amount(prompts or found.prompts, found.tokens, found.repeats, seed, samples or found.samples)


@dataclass(frozen=True)
class Timed:
    """A draft and gamma over all prompts, beside plain decoding of the same prompts in the same run."""

    row: MeasuredRow
    ours: Sequence[Cell]
    plain: Sequence[Cell]

    @property
    def whole_speedup(self) -> float:
        """Over plain decoding with everything that a text takes: encoder and prompt, too."""
        speeds = [ratio(sum(len(c.tokens) for c in cells), sum(c.whole_seconds for c in cells))
                  for cells in (self.ours, self.plain)]  # fmt: skip
        return ratio(*speeds)

    @property
    def kept_of_drafted(self) -> float:
        """The share of all guesses that entered the text."""
        return ratio(self.row.stats.accepted, self.row.stats.drafted)


@dataclass
class Lab:
    """Targets by name, with the drafts that the papers pair them with."""

    amount: Amount
    device: str = "auto"
    dtype: str = "auto"
    texts: OwnTexts = field(default_factory=OwnTexts)
    _engines: dict[str, LLM] = field(default_factory=dict, repr=False)
    _overlaps: dict[tuple[str, float], Means] = field(default_factory=dict, repr=False)
    _costs: dict[tuple[str, float], TargetCosts] = field(default_factory=dict, repr=False)

    def engine(self, target: str) -> LLM:
        """A target with its own draft, for one request at a time as in the papers."""
        target = CHATTER if target == SUMMARISER else target
        if target not in self._engines:
            self._engines[target] = self._inflated() if target == INFLATED else self._loaded(target)
        return self._engines[target]

    def _loaded(self, target: str) -> LLM:
        return outrider.load(target, device=self.device, dtype=self.dtype, slots=1)

    def _inflated(self) -> LLM:
        from outrider.bench.pair import inflated  # it imports model classes of transformers, which takes seconds

        made = inflated(CHATTER, None, torch.device(choose_device(self.device)), self.dtype)
        return LLM(made.loaded, made.drafter, slots=1)

    def draft_alone(self, target: str) -> LLM:
        """The draft model of a pair as a model of its own."""
        folder = pairs.find(target)
        assert folder is not None
        return outrider.load(str(folder / "draft"), draft="none", device=self.device, dtype=self.dtype, slots=1)

    @property
    def gpu(self) -> bool:
        return choose_device(self.device).startswith("cuda")

    def forget(self, target: str) -> None:
        """It is not asked again soon, and holds memory that others need."""
        self._engines.pop(target, None)

    def drafts(self, target: str) -> dict[str, Drafter]:
        """What Table 3 asks about: counted tables where there are some, and the target's draft."""
        own = self.engine(target).drafter
        if target == INFLATED:
            return {"head": own}
        if isinstance(own, Mixture):
            counted = self.counted_tables if target == SUMMARISER else {}
            return {**counted, own.first.name: own.first, "head": own.second}
        folder = pairs.find(target)
        require(folder is not None, f"{target} is no pair and has no head: there is no draft to measure")
        assert folder is not None
        tables = {name: table(NgramTable.load(folder / f"{name}.safetensors"), name) for name in ("unigram", "bigram")}
        return {**tables, "draft": own}

    def every_draft(self, target: str) -> dict[str, Drafter]:
        """And the mixture of them that the target comes with, if it does."""
        own = self.engine(target).drafter
        return self.drafts(target) | ({"auto": own} if isinstance(own, Mixture) else {})

    @cached_property
    def counted_tables(self) -> dict[str, Drafter]:
        """Tables of articles and summaries that are not asked."""
        llm = self.engine(CHATTER)
        ids = [llm.encode(text) for pair in spread(self.texts.counted, _COUNTED) for text in pair]
        size = llm.target.model.vocab_size
        return {name: table(NgramTable.fit(ids, size, order), name)
                for name, order in (("unigram", 1), ("bigram", 2))}  # fmt: skip

    @property
    def counted_tokens(self) -> int:
        """How many tokens those were counted on."""
        drafter = self.counted_tables["unigram"]
        assert isinstance(drafter, Ngram) and drafter.table is not None
        return int(drafter.table.unigram.sum())

    def hierarchy(self, target: str) -> dict[str, Drafter]:
        """A bigram table below the pair's draft, both ways: asked for every run of the draft, and once."""
        own = self.engine(target).drafter
        lower = self.drafts(target)["bigram"]
        assert isinstance(own, ModelDrafter)
        return {"hierarchy": Cascade(lower, own), "hierarchy, Algorithm 3": Cascade(lower, own, once=True)}

    @cached_property
    def translations(self) -> list[Pair]:
        return spread(self.texts.translations, self.amount.prompts)

    @cached_property
    def summaries(self) -> list[Pair]:
        return spread(self.texts.summaries, self.amount.prompts)

    @cached_property
    def programs(self) -> list[Program]:
        return spread(self.texts.programs, self.amount.prompts)

    def prompts(self, target: str) -> list[Any]:
        """What a target is asked: sentences, beginnings, articles, or questions in its chat format."""
        return self._prompts[CHATTER if target == INFLATED else target]

    @cached_property
    def _prompts(self) -> dict[str, list[Any]]:
        most = self.amount.prompts
        asked = chain.from_iterable(zip(*SAMPLE.values(), strict=True))  # one of each task, then the next
        return {
            TRANSLATOR: [source for source, _ in self.translations],
            CONTINUER: spread(texts.BEGINNINGS, most),
            CHATTER: [self.chat(text) for text, _ in zip(asked, range(max(len(SAMPLE), most)), strict=False)],
            SUMMARISER: [self.chat(f"Summarize in one sentence.\n\n{article}") for article, _ in self.summaries],
        }

    def chat(self, text: str) -> Any:
        return self.engine(CHATTER).chat_prompt([{"role": "user", "content": text}])

    def overlaps(self, target: str, temperature: float) -> Means:
        """Corollary 3.6: the overlap of p and q of every draft, at every token of the target's own text."""
        key = target, temperature
        if key not in self._overlaps:
            drafts, means, amount = self.every_draft(target), Means(), self.amount
            sampling = Sampling(temperature)
            for place in places(
                self.engine(target), drafts, self.prompts(target), sampling, amount.tokens, amount.seed
            ):
                seen = place.under(sampling)
                for name in drafts:
                    means.add(name, seen.overlap(name))
            self._overlaps[key] = means
        return self._overlaps[key]

    def run_costs(self, target: str, temperature: float, most: int) -> TargetCosts:
        """What runs of up to so many guesses take by their width, in plain steps."""
        key = target, temperature
        if key not in self._costs:
            llm = self.engine(target)
            options = {"temperature": temperature, "seed": self.amount.seed}
            settings = PlanSettings(tuple(range(1, most + 1)), turns=self.amount.repeats + _WARM_UP, options=options)
            ids = [prompt if isinstance(prompt, list) else llm.encode(prompt) for prompt in self.prompts(target)]
            self._costs[key] = measured_costs(llm, ids, 1, settings, lambda what: None)
        return self._costs[key]

    def timed(
        self, target: str, drafts: Mapping[str, Drafter], gammas: Sequence[int | str], temperature: float,
        prompts: Sequence[Any] | None = None, **options: Any,
    ) -> list[Timed]:  # fmt: skip
        """Plain and speculative in one run, in turns; one for every draft and gamma."""
        engine = self.engine(target)
        engines = {name: engine.with_draft(drafter) for name, drafter in drafts.items()}
        settings = MeasureSettings(
            (temperature,), self.amount.repeats,
            {"max_new_tokens": self.amount.tokens, "seed": self.amount.seed, **options}, tuple(gammas),
        )  # fmt: skip
        figures = measure(engines, {"prompts": prompts or self.prompts(target)}, settings)
        if figures.interrupted:  # a unit is whole or not there
            raise KeyboardInterrupt
        cells = figures.texts[temperature]
        return [
            Timed(row, [c[way_name(row.draft, row.gamma)] for c in cells], [c[PLAIN] for c in cells])
            for row in figures.rows
            if row.task == "all"
        ]


def table(counts: NgramTable, name: str) -> Drafter:
    """Counts as a drafter."""
    drafter = Ngram(counts)
    drafter.name = name
    return drafter
