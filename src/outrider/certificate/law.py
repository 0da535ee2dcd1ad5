"""The distribution test for a coupling: many draws through the product's own step against the exact law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.drafters import ModelDrafter
from outrider.llm import LLM
from outrider.noise import Noise
from outrider.sampling import Sampling, draw, standardise
from outrider.testing.law import chi_square_tail, same_law
from outrider.testing.rollout import sample
from outrider.types import Draft, Drafter, Session, Shape, Verdict, Verifier
from outrider.verification.coupling import kept, take

KEPT = 4
"""Tokens that top-k leaves, so that pairs of tokens can be counted."""


@dataclass(frozen=True)
class LawResult:
    """Joint law of two tokens under a coupling."""

    drafter: str
    verifier: str
    samples: int
    outcomes: int
    p_value: float
    detects: float  # smallest total variation found with probability 99.9 %
    must_pass: bool  # False: the deliberately wrong rule, which must be caught

    @property
    def passed(self) -> bool:
        return (self.p_value >= FALSE_FAIL) == self.must_pass


FALSE_FAIL = 1e-6
"""A right engine fails a law test once in a million certificates."""


def _forgetful(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    """The classic mistake: after a rejection, draw from p instead of norm(max(0, p - q))."""
    n = kept(p, draft, noise, at)
    return Verdict(n, draw(take(p, n), noise.race("token", take(at, n)[:, None], p.shape[-1])[:, 0]))


wrong_residual = Verifier("wrong residual (must be caught)", _forgetful, exact=False, shares_noise=False)


def laws(
    llm: LLM, prompts: Sequence[Sequence[int]], verifier: Verifier, samples: int, rows: int,
    progress: Callable[[float], None],
) -> list[LawResult]:  # fmt: skip
    """The rule, and the rule with a mistake in it, on a draft unlike the target: itself, hotter or colder."""
    sampling = Sampling(temperature=1.0, top_k=KEPT)
    prompt, temperature = _most_telling(llm, sampling, prompts)
    other = ModelDrafter(
        llm.target.model, f"target at temperature {temperature:g}", replace(sampling, temperature=temperature)
    )
    drafters: list[tuple[Drafter, Verifier]] = [(other, verifier), (other, wrong_residual)]
    if llm.drafter.name not in ("none", "uniform"):
        drafters.insert(1, (llm.drafter, verifier))
    cells, law = _joint_law(llm, sampling, prompt)
    results = []
    for number, (drafter, rule) in enumerate(drafters):
        counts = torch.zeros(len(law), dtype=torch.int64)
        for start in range(0, samples, rows):
            first, source = _opening(llm, prompt)
            tokens = sample(
                llm.target.model, drafter, rule, sampling, prompts=[first], rows=min(rows, samples - start),
                length=2, gamma=2, first_seed=start, sources=None if source is None else [source],
            )  # fmt: skip
            for pair in tokens.tolist():
                counts[cells.get((pair[0], pair[1]), len(law) - 1)] += 1
            progress((number + (start + rows) / samples) / len(drafters))
        results.append(_result(drafter.name, rule, counts, law))
    return results


def _result(name: str, verifier: Verifier, counts: Tensor, law: Tensor) -> LawResult:
    tested = same_law(counts, law, false_fail_rate=FALSE_FAIL)
    p_value = chi_square_tail(tested.outcomes - 1, tested.statistic)
    return LawResult(name, verifier.name, tested.samples, tested.outcomes, p_value, tested.detects, verifier.exact)


def _most_telling(llm: LLM, sampling: Sampling, prompts: Sequence[Sequence[int]]) -> tuple[Sequence[int], float]:
    """The prompt and the draft's temperature where the mistake moves the first token's law most, computed exactly."""

    def shift(choice: tuple[Sequence[int], float]) -> float:
        session, nothing = _started(llm, choice[0])
        logits = session.score(nothing)
        p = standardise(logits, sampling, session.context, nothing)[0, 0]
        q = standardise(logits, replace(sampling, temperature=choice[1]), session.context, nothing)[0, 0]
        shared = torch.minimum(p, q)
        return float((shared - shared.sum() * p).abs().sum() / 2)

    return max(((prompt, t) for prompt in prompts for t in (0.25, 4.0)), key=shift)


def _opening(llm: LLM, prompt: Sequence[int]) -> tuple[list[int], Sequence[int] | None]:
    """What the decoder starts from, and what the encoder reads if there is one."""
    if llm.target.model.encoder_decoder:
        return [llm.decoder_start or 0], prompt
    return list(prompt), None


def _started(llm: LLM, prompt: Sequence[int]) -> tuple[Session, Tensor]:
    first, source = _opening(llm, prompt)
    shape = Shape(capacity=64 * (2 + len(first) // 64), width=2, source_capacity=len(source or ()))
    session = llm.target.model.start(1, shape)
    session.admit(0, first, source)
    return session, torch.zeros((1, 0), dtype=torch.int64, device=llm.target.model.device)


def _joint_law(llm: LLM, sampling: Sampling, prompt: Sequence[int]) -> tuple[dict[tuple[int, int], int], Tensor]:
    """Probabilities of all pairs of next tokens, from plain runs of the target; the last entry is 'anything else'."""
    session, nothing = _started(llm, prompt)
    p = standardise(session.score(nothing), sampling, session.context, nothing)[0, 0]
    firsts = p.nonzero()[:, 0]
    session.select(torch.zeros_like(firsts))
    after = standardise(session.score(firsts[:, None]), sampling, session.context, firsts[:, None])[:, 1]  # [K, V]
    cells: dict[tuple[int, int], int] = {}
    law: list[float] = []
    for first, row in zip(firsts.tolist(), after, strict=True):
        for second in row.nonzero()[:, 0].tolist():
            cells[first, second] = len(law)
            law.append(float(p[first]) * float(row[second]))
    law.append(0.0)
    return cells, torch.tensor(law, dtype=torch.float64) / sum(law)
