"""Tulsian et al. 2024: Tables 1 to 5, with T5's architecture translating and SmolLM2 summarising."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from outrider.bench.cells import PLAIN, Cell
from outrider.bench.measure import Way, timed_text
from outrider.core.protocols import Drafter
from outrider.drafters import Nothing
from outrider.llm import LLM
from outrider.paper import published, quality
from outrider.paper.beams import OURS, searched
from outrider.paper.data import Pair
from outrider.paper.lab import SUMMARISER, TRANSLATOR, Lab, Timed
from outrider.paper.table import NO_GUESS, Experiment, Found, PaperRow, Unit, rounded

NOT_EXACT = "as printed their Algorithm 3 does not keep the target's distribution; ours does"
POLICIES = ("auto", "gradient", 1, 2, 3, 5, 7)
OTHERS = "the report has its gradient rule only"
ALONE = "our draft is a head of the target: it writes nothing by itself"


@dataclass(frozen=True)
class Side:
    """A task of the report, and what does it here."""

    task: str
    target: str
    draft: str

    def drafter(self, lab: Lab) -> Drafter:
        return lab.drafts(self.target)[self.draft]

    def pairs(self, lab: Lab) -> Sequence[Pair]:
        """Source and reference."""
        return lab.translations if self.target == TRANSLATOR else lab.summaries


TRANSLATIONS = Side("EnDe", TRANSLATOR, "draft")
SUMMARIES = Side("CNNDM", SUMMARISER, "head")


def table_1(side: Side) -> Unit:
    """Target and draft by themselves."""

    def run(lab: Lab) -> Found:
        own = lab.engine(side.target)
        rows = [_alone(lab, side, "T5-large", "target", own)]
        if side.target != TRANSLATOR:
            known = dict(zip(("seconds", "BLEU"), published.TULSIAN_BASE[side.task, "T5-small"], strict=True))
            about = {"task": side.task, "their model": "T5-small", "our model": None}
            return Found([*rows, PaperRow(about, known, {}, ALONE)])
        return Found([*rows, _alone(lab, side, "T5-small", "draft", lab.draft_alone(side.target))])

    return Unit(side.task, run)


def _alone(lab: Lab, side: Side, theirs: str, ours: str, llm: LLM) -> PaperRow:
    cells = _plain(lab, side, llm)
    graded = _graded(lab, side, llm, cells)
    seconds, bleu = published.TULSIAN_BASE[side.task, theirs]
    return PaperRow(
        {"task": side.task, "their model": theirs, "our model": ours}, {"seconds": seconds, "BLEU": bleu},
        {"seconds": round(mean(c.whole_seconds for c in cells), 4), **graded, "texts": len(cells)}, _why(graded),
    )  # fmt: skip


def table_2(side: Side) -> Unit:
    """Fixed gamma."""

    def run(lab: Lab) -> Found:
        timed = lab.timed(side.target, {"draft": side.drafter(lab)}, (3, 7), 0.0)
        return Found([
            _row(lab, side, one, {"gamma": one.row.gamma}, published.TULSIAN_FIXED[side.task, int(one.row.gamma)])
            for one in timed
        ])  # fmt: skip

    return Unit(side.task, run)


def table_3(lab: Lab) -> Found:
    """Beam search (A.4): hypotheses and scores are those of the search without guesses."""
    rows = []
    for beams, theirs in published.TULSIAN_BEAMS.items():
        found = searched(
            lab, TRANSLATOR, lab.prompts(TRANSLATOR), beams=beams, gamma=2, max_new_tokens=lab.amount.tokens
        )
        graded = _graded(lab, TRANSLATIONS, lab.engine(TRANSLATOR), found.cells[OURS])
        rows.append(
            PaperRow({"task": "EnDe", "beams": beams}, _theirs(theirs),
                {**graded, "alpha": None, "speed-up": round(found.speedup, 2),
                 "levels kept": rounded(found.stats.alpha_counted, 3),
                 "levels per run": round(found.stats.tokens_per_run, 2), "same hypotheses": found.same},
                _why(graded, "a search has no alpha: whole levels are kept or not"))
        )  # fmt: skip
    return Found(rows)


def table_4(side: Side) -> Unit:
    """Varying gamma by three policies: the planner's own, the report's gradient rule, and the best fixed gamma."""

    def run(lab: Lab) -> Found:
        timed = lab.timed(side.target, {"draft": side.drafter(lab)}, POLICIES, 0.0)
        fixed = max((one for one in timed if isinstance(one.row.gamma, int)), key=lambda one: one.whole_speedup)
        theirs = published.TULSIAN_VARYING[side.task]
        return Found([
            _row(lab, side, timed[1], {"policy": "gradient (theirs)"}, theirs),
            _row(lab, side, timed[0], {"policy": "auto (the planner)"}, None),
            _row(lab, side, fixed, {"policy": f"gamma {fixed.row.gamma}, best of {len(POLICIES) - 2} on these texts"},
                 None),
        ])  # fmt: skip

    return Unit(side.task, run)


def table_5(lab: Lab) -> Found:
    """The hierarchy: a bigram table below the draft, in place of their T5-small below T5-base."""
    drafts: dict[str, Drafter] = {"large + small": lab.drafts(TRANSLATOR)["bigram"],
                                  "large + base": lab.engine(TRANSLATOR).drafter}  # fmt: skip
    rows = []
    for one in lab.timed(TRANSLATOR, drafts | lab.hierarchy(TRANSLATOR), (3,), 0.0):
        known = published.TULSIAN_HIERARCHY.get(one.row.draft)
        row = _row(lab, TRANSLATIONS, one, {"combination": one.row.draft}, None)
        rows.append(
            PaperRow(row.about, {} if known is None else {"BLEU": known[0], "speed-up": known[1]}, row.ours,
                     _why(row.ours, "" if known else NOT_EXACT, "" if one.row.stats.drafted else NO_GUESS))
        )  # fmt: skip
    return Found(rows)


def _row(
    lab: Lab, side: Side, one: Timed, about: Mapping[str, Any], theirs: tuple[float, float, float] | None
) -> PaperRow:
    """Greedy texts are the target's own, so the quality of plain decoding's is that of every row: see same text."""
    graded = _graded(lab, side, lab.engine(side.target), one.plain)
    return PaperRow(
        {"task": side.task, **about}, {} if theirs is None else _theirs(theirs),
        {**graded, "alpha": rounded(min(one.row.stats.alpha, 1.0), 3),
         "kept of drafted": rounded(one.kept_of_drafted, 3),
         "speed-up": round(one.whole_speedup, 2), "same text": f"{one.row.identical} of {one.row.prompts}"},
        _why(graded, "" if one.row.stats.drafted else NO_GUESS, "" if theirs else OTHERS),
    )  # fmt: skip


def _theirs(value: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("BLEU", "alpha", "speed-up"), value, strict=True))


def _plain(lab: Lab, side: Side, llm: LLM) -> list[Cell]:
    asked = {"max_new_tokens": lab.amount.tokens, "temperature": 0}
    ways = {PLAIN: Way(llm.with_draft(Nothing()))}
    prompts = lab.prompts(side.target)
    timed_text(ways, prompts[0], asked, 1, 0)  # not counted
    return [timed_text(ways, prompt, asked, lab.amount.repeats, turn)[PLAIN] for turn, prompt in enumerate(prompts)]


def _graded(lab: Lab, side: Side, llm: LLM, cells: Sequence[Cell]) -> dict[str, float | None]:
    found, wanted = [llm.decode(cell.tokens) for cell in cells], [reference for _, reference in side.pairs(lab)]
    return {
        "BLEU": rounded_bleu(quality.mean_bleu(found, wanted)),
        "BLEU of all": rounded_bleu(quality.bleu(found, wanted)),
        "exact": round(mean(quality.exact_match(a, b) for a, b in zip(found, wanted, strict=True)), 3),
    }


def rounded_bleu(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _why(graded: Mapping[str, Any], *reasons: str) -> str:
    return "; ".join(filter(None, (*reasons, "" if graded["BLEU"] is not None else quality.NO_BLEU)))


_OTHER = (
    "Theirs are T5-large, base and small; ours translates with a target of 9M parameters and one draft, and summarises "
    "with SmolLM2-135M and its head, on the package's own texts or files of yours (--data). BLEU is the mean of every "
    "text's own as in the report, BLEU of all sacrebleu's of the set, exact the share that is the reference word for "
    "word. Times are of whole texts, encoder and prompt included, as theirs are. "
)
_ALPHA = (
    "Their alpha falls as gamma grows, as the share of all guesses that is kept does (kept of drafted); our alpha is "
    "the mean overlap of the guesses that were examined. "
)
EXPERIMENTS = (
    Experiment("tulsian-table1", published.TULSIAN, "Table 1: target and draft by themselves",
               [table_1(TRANSLATIONS), table_1(SUMMARIES)], _OTHER),
    Experiment("tulsian-table2", published.TULSIAN, "Table 2: fixed gamma", [table_2(TRANSLATIONS), table_2(SUMMARIES)],
               _OTHER + _ALPHA + "Their BLEU changes with gamma, ours cannot: the text is the target's."),
    Experiment("tulsian-table3", published.TULSIAN, "Table 3: beam search", [Unit("EnDe", table_3)],
               _OTHER + "They sample inside each beam, which is not beam search of the target; ours is."),
    Experiment("tulsian-table4", published.TULSIAN, "Table 4: varying gamma",
               [table_4(TRANSLATIONS), table_4(SUMMARIES)],
               _OTHER + _ALPHA + "The best fixed gamma was picked on the very texts it is shown for: no policy "
               "that must choose beforehand can be expected to reach it."),
    Experiment("tulsian-table5", published.TULSIAN, "Table 5: the hierarchy", [Unit("EnDe", table_5)],
               _OTHER + "Their middle model is a third of the target's size; ours is a fifth, with a table below it: "
               "large + small is our bigram table, large + base our draft."),
)  # fmt: skip
