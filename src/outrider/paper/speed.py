"""Wall-clock of Leviathan et al. 2023: Table 2 (measured) and Table 4 (measured beside Theorem 3.8)."""

from __future__ import annotations

import math

import torch

from outrider import theory
from outrider.bench.measure import MeasuredRow
from outrider.drafters import Mixture
from outrider.paper import published
from outrider.paper.lab import CHATTER, CONTINUER, INFLATED, TRANSLATOR, Lab
from outrider.paper.table import NO_GUESS, Experiment, Found, PaperRow, Unit, rounded

GAMMAS = (3, 5, 7)
LIKE = {(TRANSLATOR, "draft"): ("EnDe", "T5-small")}


def speeds(target: str, temperature: int) -> Unit:
    """Every draft of a target at every gamma, beside plain decoding in the same run."""

    def run(lab: Lab) -> Found:
        if target == INFLATED and (obstacle := _obstacle(lab)):
            return Found([PaperRow({"our target": target, "temperature": temperature}, why=obstacle)])
        drafts, own = lab.drafts(target), lab.engine(target).drafter
        drafts.pop("unigram", None)  # nothing to gain: Table 3 has its alpha
        if isinstance(own, Mixture):
            drafts["auto"] = own
        found = [_row(target, row) for row in lab.timed(target, drafts, GAMMAS, float(temperature))]
        if target == INFLATED:
            lab.forget(target)
        return Found(found)

    return Unit(f"{target}, temperature {temperature}", run)


def _obstacle(lab: Lab) -> str:
    """Why there can be no target of eight billion weights here; empty: there can."""
    if not lab.gpu:
        return "it needs a GPU"
    try:
        lab.engine(INFLATED)
    except torch.cuda.OutOfMemoryError:
        return "the GPU has too little memory for eight billion weights"
    return ""


def _row(target: str, row: MeasuredRow) -> PaperRow:
    task, draft = LIKE.get((target, row.draft), (None, None))
    known = next(
        (s for s in published.SPEEDS
         if (s.task, s.draft, s.temperature, s.gamma) == (task, draft, row.temperature, row.gamma)), None,
    )  # fmt: skip
    alpha, cost = min(row.stats.alpha, 1.0), max(row.cost, 0.0)  # not a number where no guess was made
    expected = theory.speedup(alpha, int(row.gamma), cost) if math.isfinite(alpha + cost) else math.nan
    low, high = row.speedup_interval
    return PaperRow(
        {"our target": target, "our draft": row.draft, "theirs": f"{task}, {draft}" if task else None,
         "temperature": int(row.temperature), "gamma": row.gamma},
        {} if known is None else
        {"alpha": known.alpha, "c": known.cost, "expected": known.expected, "speed-up": known.speedup},
        {"alpha": rounded(alpha, 3), "c": rounded(cost, 3), "expected": rounded(expected, 2),
         "speed-up": round(row.speedup, 2), "95 % low": rounded(low, 2), "95 % high": rounded(high, 2),
         "same text": f"{row.identical} of {row.prompts}"},
        NO_GUESS if math.isnan(expected) else "" if known else "the paper has no such row",
    )  # fmt: skip


def not_here(lab: Lab) -> Found:
    """Rows of Table 2 that nothing here stands for."""
    stood_for = set(LIKE.values())
    return Found([
        PaperRow({"theirs": f"{s.task}, {s.draft}", "temperature": s.temperature, "gamma": s.gamma},
            {"alpha": s.alpha, "c": s.cost, "expected": s.expected, "speed-up": s.speedup}, {"speed-up": None},
            "no summarising pair comes with the package" if s.task == "CNNDM"
            else "no second size of draft comes with the package")
        for s in published.SPEEDS if (s.task, s.draft) not in stood_for
    ])  # fmt: skip


EXPERIMENTS = (
    Experiment(
        "table2", published.LEVIATHAN, "Tables 2 and 4: wall-clock, measured and expected",
        [*(speeds(target, t) for target in (TRANSLATOR, CONTINUER, CHATTER, INFLATED) for t in (0, 1)),
         Unit("rows nothing stands for", not_here)],
        "Theirs is an 11B target on a TPU whose wide runs are free; ours are targets of 4M to 135M parameters, where a "
        "guess costs a larger share of a run and, on a CPU, every further token of a run costs something, which "
        "Theorem 3.8 leaves out; on a GPU also one padded to 8B weights, which computes what it did before. At "
        "temperature 1 with maximal coupling texts differ and their distribution does not.",
    ),
)  # fmt: skip
