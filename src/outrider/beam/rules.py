"""Beam search as a pure function of log-probabilities: what plain and speculative beam search share.

``advance`` is one step of the search with the target. It is told the log-probabilities behind the running
hypotheses; where one is not at hand, it proves that it cannot matter or says that the target must be run. So a
draft decides how many steps a target run pays for, and never what a step does (Leviathan et al. 2023, A.4).

A step does what transformers does for ``num_beams``, operation by operation in float32: the best
max(2, 1 + ends) * w continuations, an end counts only among the first w of them, finished scores are divided by
length ** length_penalty, and the same three rules stop the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import NumericalError

NEVER = -1e9
"""The score of what must not be chosen. It is transformers' number, so that what it lets through is the same."""

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """What a search is asked for."""

    beams: int  # w
    max_new_tokens: int
    ends: Callable[[Tokens], str | None]  # why new tokens end here, or None
    end_tokens: int = 0  # how many end-of-sequence tokens there are
    length_penalty: float = 1.0
    early_stopping: bool | str = False  # True, False or "never"
    bounded: bool = True  # no log-probability is above 0: no bias or processor can have raised one

    @property
    def kept(self) -> int:
        """Continuations looked at per step: enough that w remain when every end is among them."""
        return max(2, 1 + self.end_tokens) * self.beams


@dataclass(frozen=True)
class Hypothesis:
    """New tokens with their score: the sum of log-probabilities, over length ** length_penalty when finished."""

    tokens: Tokens
    score: float
    finish_reason: str | None = None


@dataclass(frozen=True)
class Search:
    """Where a search stands: w running hypotheses, best first, and up to w finished ones, best first."""

    running: tuple[Hypothesis, ...]
    finished: tuple[Hypothesis, ...] = ()
    done: bool = False

    @staticmethod
    def start(beams: int) -> Search:
        """w copies of nothing, of which only the first may be continued."""
        return Search((Hypothesis((), 0.0), *[Hypothesis((), NEVER)] * (beams - 1)))


@dataclass(frozen=True)
class Scored:
    """What target runs have shown: the best continuations behind some hypotheses, on the host."""

    place: Mapping[Tokens, int]  # a hypothesis's index below
    values: Tensor  # [N, K] float32: log-probabilities, largest first
    tokens: list[list[int]]  # [N, K]


def replay(search: Search, rules: Rules, scored: Scored) -> tuple[Search, int]:
    """As many steps as the scores at hand decide -> where that leads, and how many steps it was."""
    steps = 0
    while not search.done and (after := advance(search, rules, scored)) is not None:
        search, steps = after, steps + 1
    return search, steps


def advance(search: Search, rules: Rules, scored: Scored) -> Search | None:
    """One step of beam search, or None if it depends on a hypothesis that has not been scored."""
    known = [h for h in search.running if h.tokens in scored.place]
    missing = [h.score for h in search.running if h.tokens not in scored.place]
    if not known:
        return None
    candidates, complete = best_candidates(known, len(search.running[0].tokens) + 1, rules, scored)
    if missing:
        # A continuation is at most as likely as what it continues: where the candidates at hand lead all that a
        # missing hypothesis could become, its log-probabilities are not needed. A tie is no lead.
        dominated = rules.bounded and complete and candidates[-1].score > max(missing)
        if not dominated:
            return None
    return next_beams(search, rules, candidates)


def best_candidates(
    known: list[Hypothesis], length: int, rules: Rules, scored: Scored
) -> tuple[list[Hypothesis], bool]:
    """The best continuations in order, as far down as the step depends on them; whether that end was reached."""
    places = [scored.place[h.tokens] for h in known]
    totals = scored.values[places] + torch.tensor([h.score for h in known])[:, None]  # [k, K] float32
    if bool(totals.isnan().any()):
        raise NumericalError(
            f"the model returned NaN or infinite logits before new token {length}; "
            "try dtype='float32', or check the model's weights and any logits_processor"
        )
    values, order = totals.flatten().sort(descending=True, stable=True)
    candidates: list[Hypothesis] = []
    running = 0
    for score, index in zip(values[: rules.kept].tolist(), order[: rules.kept].tolist(), strict=True):
        beam, rank = divmod(index, totals.shape[1])
        tokens = (*known[beam].tokens, scored.tokens[places[beam]][rank])
        reason = rules.ends(tokens)
        candidates.append(Hypothesis(tokens, score, reason))
        running += reason is None
        # Once w are found to run on, nothing below matters; at full length none runs on.
        if len(candidates) >= rules.beams and (running >= rules.beams or length >= rules.max_new_tokens):
            return candidates, True
    return candidates, False


def next_beams(search: Search, rules: Rules, candidates: list[Hypothesis]) -> Search:
    w, length = rules.beams, len(candidates[0].tokens)
    running = [h for h in candidates if h.finish_reason is None][:w]
    ended = [h for h in candidates if h.finish_reason is not None]
    finished = [*search.finished, *_normalised([h for h in candidates[:w] if h.finish_reason], length, rules)]
    finished = sorted(finished, key=lambda h: -h.score)[:w]  # stable: the earlier wins a tie
    done = (
        not running
        or (rules.early_stopping is True and len(finished) == w)
        or not _can_improve(running[0].score, finished, length, rules)
    )
    # Where stop strings end more than can be replaced, ended ones run on with no chance, as in transformers.
    spare = torch.tensor([h.score for h in ended[: w - len(running)]]) + NEVER
    running += [Hypothesis(h.tokens, s) for h, s in zip(ended, spare.tolist(), strict=False)]
    return Search(tuple(running), tuple(finished), done)


def _normalised(ended: list[Hypothesis], length: int, rules: Rules) -> list[Hypothesis]:
    scores = torch.tensor([h.score for h in ended]) / length**rules.length_penalty
    return [Hypothesis(h.tokens, s, h.finish_reason) for h, s in zip(ended, scores.tolist(), strict=True)]


def _can_improve(best: float, finished: list[Hypothesis], length: int, rules: Rules) -> bool:
    """Whether the best running hypothesis could still beat the worst finished one, by transformers' estimate."""
    if rules.early_stopping == "never" and rules.length_penalty > 0:
        length = rules.max_new_tokens
    hoped = float(torch.tensor(best) / length**rules.length_penalty)
    return hoped > (finished[-1].score if len(finished) == rules.beams else NEVER)
