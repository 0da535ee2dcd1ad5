"""A.5 of Leviathan et al. 2023: alphas with lenience (Table 5), and the improvement that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider import theory
from outrider.core.sampling import Sampling
from outrider.paper import published
from outrider.paper.acceptance import LIKE, SMALLER, written_at_1
from outrider.paper.distributions import Means, places
from outrider.paper.lab import TRANSLATOR, Lab
from outrider.paper.speed import NO_SECOND_SIZE
from outrider.paper.table import Experiment, Found, PaperRow, Unit, rounded

LENIENCES = (1.0, 0.8, 0.5, 0.3, 0.1)
NOT_ASKED = "the paper has no l = 0.8"
_MOST = 64


def alphas(lab: Lab) -> tuple[dict[str, dict[float, float]], dict[float, float]]:
    """At temperature 1 by draft and lenience, and in A.5's greedy form: x is kept where p(x) >= l max(p)."""
    drafts, means, amount = lab.drafts(TRANSLATOR), Means(), lab.amount
    for place in written_at_1(lab, TRANSLATOR):
        for name in drafts:
            for lenience in LENIENCES:
                means.add(f"{name} {lenience}", place.overlap(name, lenience))
    llm, prompts = lab.engine(TRANSLATOR), lab.prompts(TRANSLATOR)
    for place in places(llm, drafts, prompts, Sampling(0.0), amount.tokens, amount.seed):
        q = place.q["draft"]
        for lenience in LENIENCES:
            kept = q is not None and float(place.p[int(q.argmax())]) >= lenience * float(place.p.max())
            means.add(f"greedy {lenience}", float(kept))
    found = {name: {x: means.of(f"{name} {x}").value for x in LENIENCES} for name in (*drafts, "greedy")}
    greedy = found.pop("greedy")
    return found, greedy


def table_5(lab: Lab) -> Found:
    """Both forms."""
    sampled, greedy = alphas(lab)
    names = LIKE[TRANSLATOR][1]
    rows = [_row(name, 1, published.LENIENT_ALPHAS[names[name]], ours) for name, ours in sampled.items()]
    base = dict(zip(published.LENIENCES, published.LENIENT_ALPHAS["T5-base"], strict=True))
    about = {"our draft": None, "their draft": "T5-base", "temperature": 1}
    missing = PaperRow(about, {f"l = {x:g}": base.get(x) for x in LENIENCES}, {}, f"{NO_SECOND_SIZE}; {NOT_ASKED}")
    return Found([*rows, missing, _row("draft", 0, published.LENIENT_GREEDY, greedy)])


def _row(draft: str, temperature: int, theirs: tuple[float, ...], ours: Mapping[float, float]) -> PaperRow:
    known = dict(zip(published.LENIENCES, theirs, strict=True))
    return PaperRow(
        {"our draft": draft, "their draft": LIKE[TRANSLATOR][1][draft], "temperature": temperature},
        {f"l = {x:g}": known.get(x) for x in LENIENCES},
        {f"l = {x:g}": round(ours[x], 3) for x in LENIENCES},
        NOT_ASKED,
    )


def gains(lab: Lab) -> Found:
    """The improvement factors of A.5: by the theorem from their alphas and from ours, and timed."""
    sampled, greedy = alphas(lab)
    ours = {1: sampled["draft"], 0: greedy}
    theirs = {1: published.LENIENT_ALPHAS["T5-small"], 0: published.LENIENT_GREEDY}
    draft, rows = {"draft": lab.engine(TRANSLATOR).drafter}, []
    for temperature in (1, 0):
        printed = dict(zip(published.LENIENCES, published.LENIENT_GAINS[temperature], strict=True))
        alpha = dict(zip(published.LENIENCES, theirs[temperature], strict=True))
        for l in LENIENCES:  # noqa: E741  # the paper's letter
            options: dict[str, Any] = {} if l == 1 else {"lenience": l}
            timed = lab.timed(TRANSLATOR, draft, (published.LENIENT_GAMMA,), float(temperature), **options)[0]
            rows.append(
                PaperRow({"temperature": temperature, "l": l},
                    {"improvement": printed.get(l)},
                    {"improvement": _gain(ours[temperature][l], temperature),
                     "from their alphas": _gain(alpha.get(l), temperature),
                     "timed": round(timed.row.speedup, 2), "c timed": rounded(timed.row.cost, 3)},
                    "" if l in printed else NOT_ASKED)
            )  # fmt: skip
    return Found(rows)


def _gain(alpha: float | None, temperature: int) -> float | None:
    """Theorem 3.8 with c = 0.015 and gamma 8, or the best gamma where the paper names none."""
    if alpha is None:
        return None
    c, alpha = published.LENIENT_COST, min(alpha, 1.0)
    gamma = theory.optimal_gamma(alpha, c, _MOST) if temperature == 1 else published.LENIENT_GAMMA
    return round(theory.speedup(alpha, gamma, c), 2)


EXPERIMENTS = (
    Experiment("table5", published.LEVIATHAN, "Table 5: acceptance with lenience (A.5)", [Unit(TRANSLATOR, table_5)],
               SMALLER + "l = 0.8 is asked for besides."),
    Experiment(
        "lenience", published.LEVIATHAN, "A.5: the improvement that lenience brings", [Unit(TRANSLATOR, gains)],
        "Improvement, theirs, is what the paper prints for T5-small with c = 0.015; ours is Theorem 3.8 with our "
        "alphas of Table 5 and the same c, and gamma 8 at temperature 0 as they have it; from their alphas, the same "
        "with theirs. At temperature 1 the paper names no gamma, so the best one is taken; what it prints there is "
        "more than the theorem gives for any gamma. Timed: our pair with gamma 8 and its own c.",
    ),
)  # fmt: skip
