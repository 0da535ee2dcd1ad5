"""What Leviathan et al. 2023 derive: Table 1 and Figures 2, 3 and 4, which need no model."""

from __future__ import annotations

from outrider import theory
from outrider.paper import published
from outrider.paper.lab import Lab
from outrider.paper.table import Experiment, Found, PaperRow, Unit

DRAWN = "the paper draws this figure and prints no numbers"
_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
_GAMMAS = (1, 3, 5, 7, 10)
_PRICES = (0.01, 0.02, 0.05, 0.1, 0.2)
_LONGEST = 400


def table_1(lab: Lab) -> Found:
    """Free guesses: operations by Theorem 3.11, speed by Theorem 3.8."""
    return Found([
        PaperRow(
            {"alpha": alpha, "gamma": gamma},
            {"operations": operations, "speed-up": speed},
            {
                "operations": round(theory.operations(alpha, gamma), 2),
                "speed-up": round(theory.speedup(alpha, gamma, 0.0), 2),
            },
        )
        for alpha, gamma, operations, speed in published.TABLE_1
    ])  # fmt: skip


def figure_2(lab: Lab) -> Found:
    """Equation (1)."""
    return _drawn({
        alpha: {f"gamma {gamma}": theory.expected_tokens(alpha, gamma) for gamma in _GAMMAS}
        | {"bound": theory.oracle_tokens(alpha)}
        for alpha in _ALPHAS
    })  # fmt: skip


def figure_3(lab: Lab) -> Found:
    """Section 3.5: the gamma that gains most, by what a guess costs."""
    return _drawn({alpha: {f"c {c:g}": theory.optimal_gamma(alpha, c, _LONGEST) for c in _PRICES} for alpha in _ALPHAS})


def figure_4(lab: Lab) -> Found:
    """Theorems 3.8 and 3.11 with free guesses."""
    return _drawn({
        alpha: {f"speed-up, gamma {gamma}": theory.speedup(alpha, gamma, 0.0) for gamma in _GAMMAS}
        | {f"operations, gamma {gamma}": theory.operations(alpha, gamma) for gamma in _GAMMAS}
        for alpha in _ALPHAS
    })  # fmt: skip


def _drawn(values: dict[float, dict[str, float]]) -> Found:
    return Found([
        PaperRow({"alpha": alpha}, {}, {name: round(value, 2) for name, value in row.items()}, DRAWN)
        for alpha, row in values.items()
    ])  # fmt: skip


_SAME = "Nothing: a formula is a formula."
EXPERIMENTS = (
    Experiment("table1", published.LEVIATHAN, "Table 1: operations and speed with free guesses",
               [Unit("formulas", table_1)], _SAME),
    Experiment("figure2", published.LEVIATHAN, "Figure 2: expected tokens per target run", [Unit("formulas", figure_2)],
               _SAME),
    Experiment("figure3", published.LEVIATHAN, "Figure 3: the best gamma by acceptance and cost",
               [Unit("formulas", figure_3)], _SAME),
    Experiment("figure4", published.LEVIATHAN, "Figure 4: speed and operations", [Unit("formulas", figure_4)], _SAME),
)  # fmt: skip
