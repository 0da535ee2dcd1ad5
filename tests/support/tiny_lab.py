"""A lab of random models with a few dozen weights and a handful of short texts: every experiment in a second or two."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import library
import outrider
from outrider.bench.plan.forecast import TargetCosts
from outrider.core.protocols import Drafter
from outrider.drafters import Copying, Mixture, ModelDrafter, NgramTable
from outrider.llm import LLM
from outrider.paper import lab
from outrider.paper.data import OwnTexts
from outrider.paper.lab import CHATTER, CONTINUER, INFLATED, SUMMARISER, TRANSLATOR, Amount, Lab
from outrider.paper.texts import Program

TEXTS = OwnTexts(
    translations=[("the end", "das ende"), ("a dog", "ein hund")],
    summaries=[("the cat sat on the mat", "a cat sat"), ("then it rained", "rain")],
    counted=[("the dog sat on the mat", "a dog sat")],
    programs=[Program("def f():\n", "assert f() is None"), Program("def g(x):\n", "assert g(1) == 1")],
)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ASKED = {"one": "the end of the", "two": "a b a b a"}


@dataclass
class TinyLab(Lab):
    """Every target drafts for itself, so that every guess of ``draft`` and ``head`` is right."""

    folder: Path = Path()
    texts: OwnTexts = field(default_factory=lambda: TEXTS)

    def _loaded(self, target: str) -> LLM:
        place = str(self.folder / ("t5" if target == TRANSLATOR else "llama"))
        llm = outrider.load(place, draft="copy", device="cpu", dtype="float32", slots=1)
        itself = ModelDrafter(llm.target.model, "itself")
        return llm.with_draft(Mixture(Copying(), itself) if target == CHATTER else itself)

    def drafts(self, target: str) -> dict[str, Drafter]:
        if target not in (TRANSLATOR, CONTINUER):
            return super().drafts(target)
        llm = self.engine(target)
        counted = [llm.encode("the end of the end of the dog")]
        size = llm.target.model.vocab_size
        tables = {name: lab.table(NgramTable.fit(counted, size, order), name)
                  for name, order in (("unigram", 1), ("bigram", 2))}  # fmt: skip
        return {**tables, "draft": llm.drafter}

    def draft_alone(self, target: str) -> LLM:
        return self.engine(target)

    def run_costs(self, target: str, temperature: float, most: int) -> TargetCosts:
        """Nothing is timed."""
        return TargetCosts(1, 0.01, {width: 1.0 + 0.1 * (width - 1) for width in range(1, most + 2)}, 1)

    def prompts(self, target: str) -> list[Any]:
        """Short ones: the models have room for 128 tokens."""
        if target in (CHATTER, INFLATED):
            return [self.chat(text) for text in ASKED.values()]
        if target == SUMMARISER:
            return [self.chat(article) for article, _ in self.summaries]
        return super().prompts(target) if target == TRANSLATOR else list(ASKED.values())


def tiny_lab(folder: Path, **amount: Any) -> TinyLab:
    library.save_t5(folder / "t5")
    library.save_llama(folder / "llama", chat_template=TEMPLATE)
    return TinyLab(Amount(**{"prompts": 2, "tokens": 5, "repeats": 1, "samples": 2} | amount), "cpu", folder=folder)
