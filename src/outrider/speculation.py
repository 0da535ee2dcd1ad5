"""Stochastic speculative execution beyond text: two slow functions at the same time (Leviathan et al. 2023, section 6).

f gives a distribution, an outcome is drawn from it, and g is computed for that outcome. While f still runs, g is
already computed for guesses drawn from an approximation of f; speculative sampling keeps a guess so that the
outcome follows f's distribution exactly, whatever the approximation. A kept guess has cost no time of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from outrider.errors import BadOption, require

Outcome = TypeVar("Outcome", bound=Hashable)
Value = TypeVar("Value")
Weights = Mapping[Outcome, float] | Iterable[float]
"""Outcome -> weight, or the weights of 0, 1, 2 ... in order. They need not sum to 1."""


class Task(Protocol):
    """Something under way: a ``concurrent.futures.Future`` or what looks like one."""

    def result(self) -> Any:
        """Wait for the value, or raise what the function raised."""

    def cancel(self) -> object:
        """Do not start it, if it has not started."""


class Executor(Protocol):
    """Whatever runs functions elsewhere: threads, processes, or a cluster behind the same method."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Task: ...


@dataclass(frozen=True)
class Speculated(Generic[Outcome, Value]):
    """What ``speculate`` gives."""

    outcome: Outcome  # drawn from f's distribution
    value: Value  # g(outcome)
    kept: bool  # g was already under way for this outcome when f was done
    guesses: tuple[Outcome, ...]  # what g was started on
    overlap: float  # sum of min(p, q): the chance that the first guess is kept


def speculate(
    f: Callable[[], Weights[Outcome]],
    f_approx: Callable[[], Weights[Outcome]],
    g: Callable[[Outcome], Value],
    executor: Executor,
    *,
    guesses: int = 1,
    seed: int | Random | None = None,
) -> Speculated[Outcome, Value]:
    """Draw an outcome from f() and compute g(outcome), with g running on guesses from f_approx() while f runs.

    f and g run in the executor, f_approx here. ``guesses + 1`` workers are enough. A ``Random`` as seed goes on
    where it was, for use in a loop; 0 guesses is plain execution. g must not mind being run for nothing: what it
    gives or raises for a rejected guess is dropped. A rejected guess that has not started is cancelled where the
    executor can (a Ray cluster cannot); one that has runs to its end unobserved.
    """
    require(guesses >= 0, f"guesses must be at least 0, got {guesses}")
    require(callable(getattr(executor, "submit", None)), f"executor must have a method submit, got {executor!r}")
    random = seed if isinstance(seed, Random) else Random(seed)
    truth = executor.submit(f)
    work: dict[Outcome, Task] = {}
    try:
        q = distribution("f_approx", f_approx())
        drawn = draw_several(q, guesses, random)
        for x in drawn:
            work[x] = executor.submit(g, x)
        p = distribution("f", truth.result())
        outcome = decide(p, q, drawn, random)
        for x in drawn:
            if x != outcome:
                work[x].cancel()  # before the correction is queued behind it
        if outcome not in work:
            work[outcome] = executor.submit(g, outcome)
        overlap = math.fsum(min(w, q.get(x, 0.0)) for x, w in p.items())
        return Speculated(outcome, work[outcome].result(), outcome in drawn, tuple(drawn), overlap)
    finally:  # whatever happened, nothing is left waiting to be started
        for task in (truth, *work.values()):
            task.cancel()


def expected_seconds(alpha: float, f: float, g: float, f_approx: float = 0.0) -> float:
    """Mean time of ``speculate`` with one guess, where f, g and f_approx take these times and alpha is the overlap.

    A kept guess takes the longer of f and f_approx + g; a rejected one what comes first, then g once more.
    """
    return alpha * max(f, f_approx + g) + (1 - alpha) * (max(f, f_approx) + g)


# --- speculative sampling, guess by guess ------------------------------------------------------------

Distribution = dict[Outcome, float]
"""Outcome -> probability, above zero, summing to 1."""


def draw_several(q: Distribution[Outcome], count: int, random: Random) -> list[Outcome]:
    """Different guesses, each from q without those before it; fewer where q has no more outcomes."""
    drawn: list[Outcome] = []
    while q and len(drawn) < count:
        drawn.append(draw(q, random))
        q = without(q, drawn[-1])
    return drawn


def decide(p: Distribution[Outcome], q: Distribution[Outcome], drawn: list[Outcome], random: Random) -> Outcome:
    """The outcome: distributed as p, whatever q is, and a guess where it can be.

    Section 2.3 for one guess. For the next one, the same again: after a rejection the outcome must follow the
    rest of p, and the next guess was drawn from q without the first.
    """
    for x in drawn:
        if random.random() * q[x] < p.get(x, 0.0):  # with chance min(1, p(x) / q(x))
            return x
        p, q = rest(p, q), without(q, x)
    return draw(p, random)


def rest(p: Distribution[Outcome], q: Distribution[Outcome]) -> Distribution[Outcome]:
    """norm(max(0, p - q)); where rounding leaves nothing p and q are equal and p is the right limit."""
    left = {x: w - q.get(x, 0) for x, w in p.items() if w > q.get(x, 0)}
    return normalised(left) if left else p


def without(q: Distribution[Outcome], x: Outcome) -> Distribution[Outcome]:
    """q given that it is not x."""
    return normalised({y: w for y, w in q.items() if y != x})


def draw(p: Distribution[Outcome], random: Random) -> Outcome:
    return random.choices(list(p), list(p.values()))[0]


def normalised(weights: Distribution[Outcome]) -> Distribution[Outcome]:
    total = sum(weights.values())
    return {x: w / total for x, w in weights.items()}


def distribution(name: str, weights: Any) -> Distribution[Any]:
    """What ``name`` returned as a distribution, or an error that names it."""
    try:
        items = list(weights.items() if isinstance(weights, Mapping) else enumerate(weights))
        found = {x: float(w) for x, w in items}
    except (TypeError, ValueError):
        wanted = "a mapping from outcomes to weights or a sequence of weights"
        raise BadOption(f"{name} must return {wanted}, got {weights!r:.80}") from None
    for x, w in found.items():
        if not (math.isfinite(w) and w >= 0):
            raise BadOption(f"{name} must give weights of at least 0, got {w} for outcome {x!r}")
    total = sum(found.values())
    count = len(found)
    require(0 < total < math.inf, f"{name} must give weights with a sum above 0, got {total} over {count} outcomes")
    return {x: w / total for x, w in found.items() if w / total > 0}
