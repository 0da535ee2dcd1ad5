"""Figures 2, 3 and 4 of Leviathan et al. 2023 from the formulas, with the reader's own case drawn into each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from outrider import theory
from outrider.report.panels import Curve, Figure, Panel, curve

_ALPHAS = [i / 200 for i in range(200)]  # not 1 itself: an endless draft then has no bound
_FEW_ALPHAS = [*(i / 20 for i in range(20)), 0.975]  # where the values stand in a table beside the figure
_GAMMAS = (1, 3, 5, 7, 10)
_PRICES = (0.01, 0.02, 0.05, 0.1, 0.2)
_LONGEST = 400  # Figure 3 looks for the best gamma up to here, far beyond its upper edge
_ALPHA = "acceptance rate α"
_LOWER_ALPHAS = (0.5, 0.7, 0.9)
_MIDDLE_COSTS = [i / 50 for i in range(1, 26)]


@dataclass(frozen=True)
class Case:
    """What the reader asks about: acceptance, costs, and the longest draft to consider."""

    alpha: float
    costs: theory.Costs
    most: int
    draft_operations: float = 0.0

    @cached_property
    def best(self) -> theory.Forecast:
        """The optimum."""
        return self.at(theory.optimal_gamma(self.alpha, self.costs, self.most))

    def at(self, gamma: int) -> theory.Forecast:
        return theory.forecast(self.alpha, gamma, self.costs, self.draft_operations)


def figures(case: Case) -> list[Figure]:
    """The three figures."""
    return [expected_tokens(case), optimal_gamma(case), speed_and_operations(case)]


def expected_tokens(case: Case | None = None) -> Figure:
    """Figure 2: equation (1) over alpha. Without a case, as the paper draws it."""
    alphas, mark = _FEW_ALPHAS if case is None else _ALPHAS, None
    lines = [
        *_by_gamma(alphas, lambda g: partial(theory.expected_tokens, gamma=g)),
        curve("γ=∞", alphas, theory.oracle_tokens),
    ]
    if case is not None:
        gamma, mark = case.best.gamma, (case.alpha, case.best.tokens)
        lines.append(_yours(f"yours: γ={gamma}", partial(theory.expected_tokens, gamma=gamma)))
    panel = Panel("Tokens per target run", _ALPHA, "tokens", tuple(lines), (0, 1), (1, 11), mark)
    return Figure("figure-2", "Figure 2: expected tokens per target run, equation (1)", (panel,))


def optimal_gamma(case: Case | None = None) -> Figure:
    """Figure 3: the gamma with the greatest speed-up by Theorem 3.8, over alpha, by the cost of a guess."""
    alphas, mark = _FEW_ALPHAS if case is None else _ALPHAS, None
    lines = [curve(f"c={c:g}", alphas, partial(theory.optimal_gamma, costs=c, most=_LONGEST)) for c in _PRICES]
    if case is not None:
        lines.append(_yours("yours", partial(theory.optimal_gamma, costs=case.costs, most=case.most)))
        mark = (case.alpha, case.best.gamma)
    panel = Panel("Guesses that gain most", _ALPHA, "γ", tuple(lines), (0, 1), (0, 20), mark, whole=True)
    return Figure("figure-3", "Figure 3: the best γ by the cost c of a guess, section 3.5", (panel,))


def speed_and_operations(case: Case | None = None) -> Figure:
    """Figure 4: what is gained in time and paid in arithmetic, over alpha; the paper's lines have free guesses."""
    alphas = _FEW_ALPHAS if case is None else _ALPHAS
    speed = _by_gamma(alphas, lambda g: partial(theory.speedup, gamma=g, costs=0.0))
    work = _by_gamma(alphas, lambda g: partial(theory.operations, gamma=g))
    marks: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)
    title = "Figure 4: gain in time and cost in operations (Theorems 3.8 and 3.11); guesses free"
    if case is not None:
        gamma, label = case.best.gamma, f"yours: γ={case.best.gamma}"
        speed.append(_yours(label, partial(theory.speedup, gamma=gamma, costs=case.costs)))
        operations = partial(theory.operations, gamma=gamma, draft_operations=case.draft_operations)
        work.append(_yours(label, operations))
        marks, title = ((case.alpha, case.best.speedup), (case.alpha, case.best.operations)), f"{title} but for yours"
    panels = (
        Panel("Speed-up", _ALPHA, "times as fast", tuple(speed), (0, 1), (0, 10), marks[0]),
        Panel("Arithmetic", _ALPHA, "times the operations", tuple(work), (0, 1), (0, 10), marks[1]),
    )
    return Figure("figure-4", title, panels)


def hierarchy_region(levels: theory.Hierarchy, most: int) -> Figure:
    """Where a hierarchy pays: its gain over the better of both pairs, by what a run of the middle model costs."""
    lines = []
    for lower in sorted({*_LOWER_ALPHAS, levels.lower_alpha}):
        gain = partial(_gain_at, levels, most=most, lower_alpha=lower)
        lines.append(curve(f"{lower:g} kept below", _MIDDLE_COSTS, gain, yours=lower == levels.lower_alpha))
    mark = (levels.c, levels.best(most, min(8, most)).gain)
    widest, highest = (
        max(_MIDDLE_COSTS[-1], levels.c),
        max(1.5, mark[1], *(max(line.ys) for line in lines)),
    )
    panel = Panel(
        f"Hierarchy over the better pair, α={levels.alpha:g}", "a middle run, in target runs", "times as fast",
        tuple(lines), (0, widest), (0.5, highest), mark,
    )  # fmt: skip
    title = (
        "Where a hierarchy pays: above 1. Guesses of the lower drafter cost the same share of a middle run throughout"
    )
    return Figure("hierarchy", title, (panel,))


def _gain_at(levels: theory.Hierarchy, c: float, most: int, lower_alpha: float) -> float:
    """With another middle model, a guess below costing the same share of its run."""
    alone = None
    if levels.lower_alone is not None and levels.lower_alpha > 0:
        alone = min(1.0, levels.lower_alone * lower_alpha / levels.lower_alpha)
    share = levels.lower_c / levels.c if levels.c else 0.0
    other = replace(levels, c=c, lower_alpha=lower_alpha, lower_c=share * c, lower_alone=alone)
    return other.best(most, min(8, most)).gain


def _by_gamma(alphas: Sequence[float], function: Callable[[int], Callable[[float], float]]) -> list[Curve]:
    return [curve(f"γ={gamma}", alphas, function(gamma)) for gamma in _GAMMAS]


def _yours(label: str, function: Callable[[float], float]) -> Curve:
    return curve(label, _ALPHAS, function, yours=True)
