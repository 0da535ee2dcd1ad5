"""Wall-clock of Leviathan et al. 2023: Table 2 (measured) and Table 4 (measured beside Theorems 3.8 and 3.11)."""

from __future__ import annotations

import math

import torch

from outrider import theory
from outrider.bench.plan.acceptance import DraftedRun, counted
from outrider.bench.plan.forecast import TargetCosts
from outrider.paper import published
from outrider.paper.lab import CHATTER, CONTINUER, INFLATED, SUMMARISER, TRANSLATOR, Lab, Timed
from outrider.paper.operations import share_of_a_guess
from outrider.paper.published import Speed
from outrider.paper.table import NO_GUESS, Experiment, Found, PaperRow, Unit, rounded

GAMMAS = (3, 5, 7)
LIKE = {  # what stands for what: our target and draft, their task and draft
    (TRANSLATOR, "draft"): ("EnDe", "T5-small"),
    (TRANSLATOR, "bigram"): ("EnDe", "bigram"),
    (SUMMARISER, "head"): ("CNNDM", "T5-small"),
    (SUMMARISER, "auto"): ("CNNDM", "T5-base"),
}
NO_SUCH_ROW = "the paper has no such row"
WORKED_OUT = "the paper works this speed-up out and times none: alpha is about 0.2, c about 0"
NO_SECOND_SIZE = "no second size of draft comes with the package"
NO_THIRD_DRAFT = "one head comes with our target: no third draft to stand for theirs"


def speeds(target: str, temperature: int) -> Unit:
    """Every draft of a target at every gamma, beside plain decoding in the same run."""

    def run(lab: Lab) -> Found:
        if target == INFLATED and (obstacle := _obstacle(lab)):
            return Found([PaperRow({"our target": target, "temperature": temperature}, why=obstacle)])
        drafts = lab.every_draft(target)
        drafts.pop("unigram", None)  # nothing to gain: Table 3 has its alpha
        found = [_row(lab, target, timed) for timed in lab.timed(target, drafts, GAMMAS, float(temperature))]
        notes = _notes(lab, target)
        if target == INFLATED:
            lab.forget(target)
        return Found(found, notes=notes)

    return Unit(f"{target}, temperature {temperature}", run)


def _notes(lab: Lab, target: str) -> list[str]:
    if target != SUMMARISER:
        return []
    return [f"Our bigram table was counted on {lab.counted_tokens:,} tokens of texts that are not asked."]


def _obstacle(lab: Lab) -> str:
    """Why there can be no target of eight billion weights here; empty: there can."""
    if not lab.gpu:
        return "it needs a GPU"
    try:
        lab.engine(INFLATED)
    except torch.cuda.OutOfMemoryError:
        return "the GPU has too little memory for eight billion weights"
    return ""


def _row(lab: Lab, target: str, timed: Timed) -> PaperRow:
    row, gamma = timed.row, int(timed.row.gamma)
    known, task = _known(target, row.draft, int(row.temperature), gamma)
    alpha = min(lab.overlaps(target, row.temperature).of(row.draft).value, 1.0)  # rounding may exceed 1
    cost = max(row.cost, 0.0)  # not a number where no guess was made
    low, high = row.speedup_interval
    share = share_of_a_guess(target, lab.engine(target), lab.every_draft(target)[row.draft])
    timed_there = known is not None and known is not published.BIGRAM
    return PaperRow(
        {"our target": target, "our draft": row.draft, "theirs": task, "temperature": int(row.temperature),
         "gamma": gamma},
        {} if known is None else
        {"alpha": known.alpha, "c": known.cost, "expected": known.expected,
         "speed-up": known.speedup if timed_there else None},
        {"alpha": round(alpha, 3), "c": rounded(cost, 3),
         "expected": rounded(theory.speedup(alpha, gamma, cost) if math.isfinite(cost) else math.nan, 2),
         "speed-up": round(row.speedup, 2), "95 % low": rounded(low, 2), "95 % high": rounded(high, 2),
         "expected by guess and width": rounded(by_guess_and_width(timed, lab.run_costs(
             target, row.temperature, max(GAMMAS))), 2),
         "operations expected": None if share is None else round(theory.operations(alpha, gamma, share), 2),
         "operations counted": None if share is None else rounded(counted_operations(timed, share), 2),
         "same text": f"{row.identical} of {row.prompts}"},
        _why(timed, known, share),
    )  # fmt: skip


def _known(target: str, draft: str, temperature: int, gamma: int) -> tuple[Speed | None, str | None]:
    """Their row that ours stands beside, and what it is called."""
    if (target, draft) not in LIKE:
        return None, None
    task, theirs = LIKE[target, draft]
    found = (s for s in (*published.SPEEDS, published.BIGRAM)
             if (s.task, s.draft, s.temperature, s.gamma) == (task, theirs, temperature, gamma))  # fmt: skip
    return next(found, None), f"{task}, {theirs}"


def _why(timed: Timed, known: Speed | None, share: float | None) -> str:
    reasons = [
        "" if timed.row.stats.drafted else NO_GUESS,
        NO_SUCH_ROW if known is None else WORKED_OUT if known is published.BIGRAM else "",
        "" if share is not None else "operations of this pair are not counted",
    ]
    return "; ".join(filter(None, reasons))


def by_guess_and_width(timed: Timed, costs: TargetCosts) -> float:
    """Theorem 3.8 without its simplifications: how often guess 1, 2, ... was made and kept, what runs cost by width.

    What the drafter took is measured; that of a run is from runs of the same widths with guesses that take no time.
    """
    stats, gamma = timed.row.stats, int(timed.row.gamma)
    if not stats.drafted:
        return math.nan
    records = [record for cell in timed.ours for record in cell.outputs[0].trace.records]
    counts = counted((DraftedRun(len(r.drafted), r.accepted) for r in records), gamma)
    drafting = max(0.0, timed.row.cost) * stats.drafted / stats.runs
    step = theory.Costs({gamma + 1: costs.run(counts.shares)}, 0.0, drafting)
    return theory.speedup(counts.chances, gamma, step)


def counted_operations(timed: Timed, share: float) -> float:
    """Of all tokens that went through target and draft, over those of plain decoding, a token each."""
    stats = timed.row.stats
    return (stats.runs + stats.drafted * (1 + share)) / stats.tokens if stats.tokens else math.nan


def not_here(lab: Lab) -> Found:
    """Rows of Table 2 that nothing here stands for."""
    stood_for = set(LIKE.values())
    return Found([
        PaperRow({"theirs": f"{s.task}, {s.draft}", "temperature": s.temperature, "gamma": s.gamma},
            {"alpha": s.alpha, "c": s.cost, "expected": s.expected, "speed-up": s.speedup}, {},
            NO_THIRD_DRAFT if s.task == "CNNDM" else NO_SECOND_SIZE)
        for s in published.SPEEDS if (s.task, s.draft) not in stood_for
    ])  # fmt: skip


EXPERIMENTS = (
    Experiment(
        "table2", published.LEVIATHAN, "Tables 2 and 4: wall-clock, measured and expected",
        [*(speeds(target, t) for target in (TRANSLATOR, CONTINUER, CHATTER, SUMMARISER, INFLATED) for t in (0, 1)),
         Unit("rows nothing stands for", not_here)],
        "Theirs is an 11B target on a TPU whose wide runs are free; ours are targets of 4M to 135M parameters, where a "
        "guess costs a larger share of a run and, on a CPU, every further token of a run costs something; on a GPU "
        "also one padded to 8B weights, which computes what it did before. Summaries are SmolLM2's, of other articles, "
        "with its head in the place of T5-small and copying before the head in that of T5-base. Alpha is "
        "Corollary 3.6 on the target's own text, a place without a guess counting 0; c is a guess over a plain step, "
        "with what a call of the drafter takes by itself, so it falls as gamma grows. Expected: Theorem 3.8 with that "
        "alpha and c, as in their Table 4. Expected by guess and width: the same theorem with the chances of guess "
        "1, 2, ... of these runs and what a run costs by its width. Operations: Theorem 3.11, and as counted. Prefill "
        "and encoder are left out. At temperature 1 with maximal coupling texts differ and their distribution does "
        "not. How many texts a row is of stands under same text.",
    ),
)  # fmt: skip
