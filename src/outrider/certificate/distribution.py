"""The distribution test for a coupling: many draws through the product's own step against the exact distribution.

Draws that need a run of the model each are expensive, so there are two tests. The rule is tested with many draws on the
target's own distributions at one place of a text, read from the model once and kept in a table; a wrong rule on the
same table must be caught, or the test has no power. The whole engine, with its drafter, is tested with few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.certificate.place import Place, most_telling
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Verdict, Verifier
from outrider.core.sampling import Sampling, draw
from outrider.core.verification.maximal import kept, take
from outrider.drafters import ModelDrafter
from outrider.llm import LLM
from outrider.testing.distribution import chi_square_tail, same_distribution, samples_for
from outrider.testing.rollout import counts_of, exact_distribution, sample

FALSE_FAIL = 1e-6
"""A right engine fails a distribution test once in a million certificates."""

WEAKEST = 0.5
"""A test that only finds larger distances than this says nothing."""

NEVER_KEPT = ("none", "uniform")
"""Drafters whose guesses are never the target's: the engine's distribution with them is plain sampling."""

WARM = Sampling(temperature=1.0)
Progress = Callable[[float], None]


@dataclass(frozen=True)
class DistributionResult:
    """Joint distribution of two tokens under a coupling."""

    part: str  # rule, engine or control
    drafter: str
    verifier: str
    samples: int
    outcomes: int
    p_value: float
    detects: float  # smallest total variation found with probability 99.9 %
    must_pass: bool  # False: the deliberately wrong rule, which must be caught
    distance: float | None = None  # of the wrong rule: the total variation it is off by at the first token, exactly
    power: bool = True  # False: the test could not have found a mistake
    remedy: str | None = None
    needed: int | None = None  # draws that would find WEAKEST on this distribution; None: not known

    @property
    def caught(self) -> bool:
        return self.p_value < FALSE_FAIL

    @property
    def passed(self) -> bool:
        return self.power and self.caught != self.must_pass

    @property
    def inconclusive(self) -> bool:
        """Nothing wrong was found, and nothing could have been."""
        return not self.power and not (self.must_pass and self.caught)


def forgetful(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    """The classic mistake: after a rejection, draw from p instead of norm(max(0, p - q))."""
    n = kept(p, draft, noise, at)
    return Verdict(n, draw(take(p, n), noise.race("token", take(at, n)[:, None], p.shape[-1])[:, 0]))


wrong_residual = Verifier("wrong residual", forgetful, exact=False, shares_noise=False)


def distribution_tests(
    llm: LLM, texts: Sequence[tuple[Sequence[int], Sequence[int]]], verifier: Verifier, samples: tuple[int, int],
    progress: Progress,
) -> list[DistributionResult]:  # fmt: skip
    """The rule, the rule with a mistake in it, and the engine with its drafter; ``texts`` are prompts and answers.

    ``samples``: draws of the rule on a table, and draws by runs of the model.
    """
    of_rule, of_engine = samples
    of_engine = 0 if llm.drafter.name in NEVER_KEPT else of_engine
    if not of_rule and not of_engine:
        return []
    place = most_telling(llm, texts)
    results = _rule(place, verifier, of_rule, lambda share: progress(0.2 * share)) if of_rule else []
    if of_engine:
        results.append(_engine(llm, place.among(2), verifier, of_engine, lambda share: progress(0.2 + 0.8 * share)))
    return judge(results)


def _rule(place: Place, right: Verifier, samples: int, progress: Progress) -> list[DistributionResult]:
    model = place.table
    hotter = ModelDrafter(model, place.draft_name, Sampling(temperature=place.temperature))
    distribution = exact_distribution(model, WARM, place.table_prompt, 2)
    results = []
    for number, verifier in enumerate((right, wrong_residual)):

        def draws(first: int, rows: int, verifier: Verifier = verifier) -> Tensor:
            tokens = sample(
                model, hotter, verifier, WARM, prompts=[place.table_prompt], rows=rows, length=2, gamma=2,
                first_seed=first,
            )  # fmt: skip
            return counts_of(tokens, model.vocab_size)

        counts = _collect(draws, samples, 10_000, lambda share, n=number: progress((n + share) / 2))  # type: ignore[misc]
        part, distance = ("rule", None) if verifier.exact else ("control", place.distance)
        results.append(result_of(part, hotter.name, verifier, counts, distribution, distance))
    return results


def _engine(llm: LLM, place: Place, verifier: Verifier, samples: int, progress: Progress) -> DistributionResult:
    """Real runs, the real drafter, the whole vocabulary; outcomes are named by the table's numbers."""
    size = place.table.vocab_size
    distribution = exact_distribution(place.table, WARM, place.table_prompt, 2)
    number = torch.zeros(llm.target.model.vocab_size, dtype=torch.int64)  # 0: impossible
    number[place.tokens] = torch.arange(1, size)

    def draws(first: int, rows: int) -> Tensor:
        tokens = sample(
            llm.target.model, llm.drafter, verifier, place.sampling, prompts=[place.prefix], rows=rows,
            length=2, gamma=2, first_seed=first, sources=None if place.source is None else [place.source],
        )  # fmt: skip
        return counts_of(number[tokens.cpu()], size)

    counts = _collect(draws, samples, 32, progress)
    return result_of("engine", llm.drafter.name, verifier, counts, distribution, None)


def _collect(draws: Callable[[int, int], Tensor], samples: int, rows: int, progress: Progress) -> Tensor:
    counts: Tensor | int = 0
    for start in range(0, samples, rows):
        counts = counts + draws(start, min(rows, samples - start))
        progress(min(1.0, (start + rows) / samples))
    assert isinstance(counts, Tensor)
    return counts


def result_of(
    part: str, name: str, verifier: Verifier, counts: Tensor, distribution: Tensor, distance: float | None
) -> DistributionResult:
    tested = same_distribution(counts, distribution, false_fail_rate=FALSE_FAIL)
    p_value = chi_square_tail(tested.outcomes - 1, tested.statistic)
    needed = samples_for(distribution, WEAKEST, false_fail_rate=FALSE_FAIL) if tested.detects > WEAKEST else None
    return DistributionResult(
        part, name, verifier.name, tested.samples, tested.outcomes, p_value, tested.detects, verifier.exact, distance,
        needed=needed,
    )  # fmt: skip


def judge(results: list[DistributionResult]) -> list[DistributionResult]:
    """A missed control takes the power from all tests, unless its mistake was large enough to be found."""
    control = next((r for r in results if r.part == "control"), None)
    blind = control is not None and not control.caught and (control.distance or 0.0) < control.detects
    judged = []
    for result in results:
        if blind or (result.must_pass and result.detects > WEAKEST):
            option = "--engine-samples" if result.part == "engine" else "--samples"
            result = replace(result, power=False, remedy=_remedy(result, control, option))
        judged.append(result)
    return judged


def _remedy(result: DistributionResult, control: DistributionResult | None, option: str) -> str:
    distance = 0.0 if control is None or control.distance is None else control.distance
    if control is not None and not control.caught and distance < 0.02:
        return (
            f"this target is nearly certain of its next tokens after every prompt (a wrong rule is off by "
            f"{distance:.2g} only): give prompts with open answers by --prompts FILE"
        )
    if result.needed is not None and (control is None or control.caught):
        return f"{result.samples} draws are too few: use {option} {100 * math.ceil(result.needed / 100)}"
    wanted = WEAKEST / 2 if distance == 0 else min(WEAKEST / 2, distance)
    needed = result.samples * (result.detects / wanted) ** 2
    return f"{result.samples} draws are too few: use {option} {100 * int(needed / 100 + 1)}"
