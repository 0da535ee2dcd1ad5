"""A.4 of Leviathan et al. 2023: beam search, several levels for one run of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.bench.cells import PLAIN, Cell
from outrider.drafters import Nothing
from outrider.paper import published
from outrider.paper.lab import CHATTER, TRANSLATOR, Lab
from outrider.paper.table import Experiment, Found, PaperRow, Unit
from outrider.trace import Stats, merge, ratio, summarise

OURS = "speculative"
SETTINGS = ((2, 3, 1), (2, 3, 2), (4, 6, 1), (4, 6, 2))
"""w, u and gamma."""
_LEVELS = 16
"""Tokens of a search of the larger model: a search runs u rows."""


@dataclass(frozen=True)
class Searches:
    """The same searches with and without guesses, in turns."""

    cells: Mapping[str, Sequence[Cell]]

    @property
    def speedup(self) -> float:
        """With encoder and prompt: a drafter has to read them, too."""
        seconds = {name: sum(c.whole_seconds for c in found) for name, found in self.cells.items()}
        return ratio(seconds[PLAIN], seconds[OURS])

    @property
    def same(self) -> str:
        """Searches with the same hypotheses and scores."""
        pairs = zip(self.cells[PLAIN], self.cells[OURS], strict=True)
        same = sum(a.outputs[0].hypotheses == b.outputs[0].hypotheses for a, b in pairs)
        return f"{same} of {len(self.cells[PLAIN])}"

    @property
    def stats(self) -> Stats:
        return summarise(merge(c.outputs[0].trace for c in self.cells[OURS]))


def searched(lab: Lab, target: str, prompts: Sequence[Any], **options: Any) -> Searches:
    """Every prompt plainly and with guesses, one after the other, the order turning."""
    llm = lab.engine(target)
    ways = {PLAIN: llm.with_draft(Nothing()), OURS: llm}
    for way in ways.values():  # not counted
        way.generate(prompts[0], **{**options, "max_new_tokens": 3})
    cells: dict[str, list[Cell]] = {name: [] for name in ways}
    for turn, prompt in enumerate(prompts):
        outputs: dict[str, list[Any]] = {name: [] for name in ways}
        for repeat in range(lab.amount.repeats):
            for name in list(ways)[:: 1 if (turn + repeat) % 2 else -1]:
                outputs[name].append(ways[name].generate(prompt, **options))
        for name, found in outputs.items():
            cells[name].append(Cell(tuple(found)))
    return Searches(cells)


def table(target: str) -> Unit:
    """Levels kept, and what they bring."""

    def run(lab: Lab) -> Found:
        tokens = lab.amount.tokens if target == TRANSLATOR else min(_LEVELS, lab.amount.tokens)
        rows = []
        for w, u, gamma in SETTINGS:
            found = searched(
                lab, target, lab.prompts(target), beams=w, draft_beams=u, gamma=gamma, max_new_tokens=tokens
            )
            stats = found.stats
            rows.append(
                PaperRow({"our target": target, "w": w, "u": u, "gamma": gamma},
                    {"tokens of a run": w + u * gamma},
                    {"tokens of a run": u * (gamma + 1), "levels kept": round(stats.alpha_counted, 3),
                     "levels per run": round(stats.tokens_per_run, 2), "speed-up": round(found.speedup, 2),
                     "same hypotheses": found.same})
            )  # fmt: skip
        return Found(rows)

    return Unit(target, run)


EXPERIMENTS = (
    Experiment(
        "beams", published.LEVIATHAN, "A.4: beam search", [table(target) for target in (TRANSLATOR, CHATTER)],
        "The paper describes the rule and measured nothing. w beams of the search, u of the draft, gamma levels; "
        "tokens of a run: its budget is w + u gamma, ours at most u rows of gamma + 1, since a branch needs a row of "
        "its own. A level is kept if the target's w best continuations are among the draft's. Speed-up: over plain "
        "beam search as fast as we have it, encoder and prompt included.",
    ),
)  # fmt: skip
