"""What a row must give, worked out slowly: every text with its exact probability, in plain Python floats.

Nothing here is shared with ``outrider.core.sampling``: only the table of the toy model is read, as data. Options are
applied as documented: repetition penalty, frequency and presence penalty, bias, processors, temperature, top-k, top-p,
min-p.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.sampling import Sampling

LETTERS = "abcdefghijklmnop"
Outcome = tuple[tuple[int, ...], str]
"""New tokens, and why the text ended."""


@dataclass(frozen=True)
class Ends:
    """When a text ends."""

    new: int  # at most so many new tokens
    eos: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()  # of the letters that stand for tokens

    def reason(self, tokens: Sequence[int]) -> str | None:
        if tokens and tokens[-1] in self.eos:
            return "eos"
        if any(stop in text_of(tokens) for stop in self.stop):
            return "stop"
        return "length" if len(tokens) >= self.new else None


def text_of(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[t] for t in tokens)


class Rule:
    """A logits processor as transformers calls it; subclasses say what becomes of the scores, as plain numbers."""

    def scores(self, ids: Sequence[int], scores: list[float]) -> list[float]:
        raise NotImplementedError

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        assert ids.dim() == scores.dim() == 2 and len(ids) == len(scores) == 1
        return torch.tensor([self.scores(ids[0].tolist(), scores[0].tolist())], dtype=scores.dtype)


@dataclass(frozen=True)
class NoRepeat(Rule):
    """No n-gram of this size twice, prompt included."""

    size: int

    def scores(self, ids: Sequence[int], scores: list[float]) -> list[float]:
        last = tuple(ids[len(ids) - self.size + 1 :])
        grams = [tuple(ids[i : i + self.size]) for i in range(len(ids) - self.size + 1)]
        seen = {gram[-1] for gram in grams if gram[:-1] == last}
        return [-math.inf if x in seen else s for x, s in enumerate(scores)]


@dataclass(frozen=True)
class Grammar(Rule):
    """After every token only some tokens are allowed, at least one."""

    seed: int

    def scores(self, ids: Sequence[int], scores: list[float]) -> list[float]:
        chosen = random.Random(f"{self.seed} {ids[-1]}")
        allowed = set(chosen.sample(range(len(scores)), chosen.randint(1, len(scores))))
        return [s if x in allowed else -math.inf for x, s in enumerate(scores)]


@dataclass(frozen=True)
class Strict(Rule):
    """Some tokens and the end tokens are allowed. It has no answer behind any other text, nor behind its end."""

    allowed: tuple[int, ...]
    ends: tuple[int, ...]

    def scores(self, ids: Sequence[int], scores: list[float]) -> list[float]:
        if ids[-1] not in self.allowed:
            raise KeyError(f"asked behind {list(ids)}")
        return [s if x in self.allowed + self.ends else -math.inf for x, s in enumerate(scores)]


@dataclass(frozen=True)
class Lift(Rule):
    """Adds a number that depends on the token before, the position and the token."""

    seed: int

    def scores(self, ids: Sequence[int], scores: list[float]) -> list[float]:
        chosen = random.Random(f"{self.seed} {ids[-1]} {len(ids)}")
        return [s + chosen.uniform(-3, 3) for s in scores]


@dataclass(frozen=True)
class Reference:
    """A toy's table with options: the distribution of the next token, and of whole texts."""

    table: list[list[float]]  # logits by state: the last ``order`` tokens as digits, newest last
    order: int
    sampling: Sampling
    ends: Ends

    def logits(self, prompt: Sequence[int], written: Sequence[int]) -> list[float]:
        """After penalties, bias and processors."""
        size, asked = len(self.table[0]), self.sampling
        before = [*prompt, *written]
        state = 0
        for token in [0] * (self.order - len(before)) + before[max(0, len(before) - self.order) :]:
            state = state * size + token
        found = list(self.table[state])
        for x, s in enumerate(found):
            if x in before and asked.repetition_penalty != 1:
                s = s / asked.repetition_penalty if s > 0 else s * asked.repetition_penalty
            s -= asked.frequency_penalty * written.count(x)
            s -= asked.presence_penalty if x in written else 0.0
            found[x] = s + asked.logit_bias.get(x, 0.0)
        for rule in asked.processors:
            found = rule.scores(before, found)  # type: ignore[attr-defined]
        return found

    def soft(self, prompt: Sequence[int], written: Sequence[int], temperature: float) -> list[float] | None:
        """Probabilities of the next token at a temperature, unlikely ones cut; None where no token is left."""
        logits = [s / temperature for s in self.logits(prompt, written)]
        best = max(logits)
        if not math.isfinite(best) or any(math.isnan(s) for s in logits):
            return None
        weights = [math.exp(s - best) for s in logits]
        order = sorted(range(len(weights)), key=lambda x: (-weights[x], x))
        if self.sampling.top_k is not None:
            order = order[: self.sampling.top_k]
        total, kept, reached = math.fsum(weights[x] for x in order), [], 0.0
        for x in order:
            if reached < self.sampling.top_p * total:
                kept.append(x)
            reached += weights[x]
        kept = [x for x in kept if weights[x] >= self.sampling.min_p * weights[kept[0]]]
        total = math.fsum(weights[x] for x in kept)
        return [weights[x] / total if x in kept else 0.0 for x in range(len(weights))]

    def distribution(self, prompt: Sequence[int], written: Sequence[int]) -> list[float] | None:
        """Probabilities of the next token; None where options and model leave none."""
        if self.sampling.temperature > 0:
            return self.soft(prompt, written, self.sampling.temperature)
        logits = self.logits(prompt, written)
        best = max(range(len(logits)), key=logits.__getitem__)
        return [float(x == best) for x in range(len(logits))] if math.isfinite(logits[best]) else None

    def texts(self, prompt: Sequence[int], written: tuple[int, ...] = (), weight: float = 1.0) -> dict[Outcome, float]:
        """Every text there can be with its probability."""
        if written and (reason := self.ends.reason(written)) is not None:
            return {(written, reason): weight}
        if (distribution := self.distribution(prompt, written)) is None:
            return {(written, "error"): weight}
        found: dict[Outcome, float] = {}
        for x, p in enumerate(distribution):
            if p > 0:
                found |= self.texts(prompt, (*written, x), weight * p)
        return found
