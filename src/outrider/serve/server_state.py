"""Where the server stands: its status, and the theory's curves with its own point on them."""

from __future__ import annotations

from typing import Any

from outrider.planning.policies import Auto
from outrider.serve.engine import Engine
from outrider.serve.settings import public_name
from outrider.theory import speedup
from outrider.trace import finite

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
MOST = 16
UNMEASURED = 0.05
"""c where nothing was measured: what a small draft costs."""


def guess_cost(engine: Engine) -> float | None:
    """c: the time of a guess over that of a plain step, as measured while serving."""
    policy = engine.decoder.gamma
    measured = policy.measured() if isinstance(policy, Auto) else []
    if not measured:
        return None
    ladder, steps = max(measured, key=lambda entry: entry[1])
    most = len(ladder.drafts) - 1
    return (ladder.drafts[most] - ladder.drafts[0]) / most if most and steps else None


def status(engine: Engine, model: str) -> dict[str, Any]:
    facts = engine.llm.target.model.facts
    seen = engine.observed
    return dict(
        finite(
            {
                "model": model,
                "draft": public_name(engine.llm.drafter.name),
                "drafts": list(engine.drafts),
                "engine": facts.engine,
                "dtype": facts.computes_in,
                "slots": engine.limits.slots,
                "context": engine.limits.context,
                "running": engine.running,
                "waiting": engine.waiting,
                "alpha": seen.alpha,
                "c": guess_cost(engine),
                "gamma": seen.gamma,
                "tokens_per_second": seen.tokens_per_second,
                "drafter_failures": engine.drafter_failures,
            }
        )
    )


def theory(engine: Engine) -> dict[str, Any]:
    """Theorem 3.8: speed-up by gamma for some acceptance rates, at the cost of a guess measured here."""
    c = guess_cost(engine)
    cost = UNMEASURED if c is None else max(0.0, c)
    alpha, gamma = engine.observed.alpha, engine.observed.gamma
    here = None
    if alpha is not None and gamma is not None:
        here = speedup(min(1.0, max(0.0, alpha)), round(gamma), cost)
    numbers = list(range(MOST + 1))
    return {
        "curves": [
            {"alpha": one, "gamma": numbers, "speedup": [speedup(one, number, cost) for number in numbers]}
            for one in ALPHAS
        ],
        "here": {"alpha": alpha, "c": c, "gamma": gamma, "speedup": here},
    }
