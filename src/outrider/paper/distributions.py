"""p and q at every token of texts that the target writes by itself: what Corollary 3.6 asks for, of any drafter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session
from outrider.core.sampling import Sampling, standardise
from outrider.llm import LLM
from outrider.options import Options

ONE = Sampling(temperature=1.0)


@dataclass(frozen=True)
class ScoredToken:
    """A token of the target's own text: p, and what each drafter would have guessed from, at temperature 1."""

    p: Tensor  # [V]
    q: Mapping[str, Tensor | None]  # [V]; None: no guess

    def under(self, sampling: Sampling) -> ScoredToken:
        """The same with both distributions changed by these options."""
        change = changed(sampling)
        return ScoredToken(change(self.p), {name: None if q is None else change(q) for name, q in self.q.items()})

    def overlap(self, name: str, lenience: float = 1.0) -> float:
        """The chance that a guess is kept: A.5's sum of min(p / l, q)."""
        q = self.q[name]
        return 0.0 if q is None else float(torch.minimum(self.p / lenience, q).sum())

    def rejection(self, name: str) -> float:
        """The chance that one round of rejection sampling keeps a guess (A.2): the least of q(x) / p(x)."""
        q, possible = self.q[name], self.p > 0
        return 0.0 if q is None else float((q[possible] / self.p[possible]).min().clamp(max=1))


def changed(sampling: Sampling) -> Callable[[Tensor], Tensor]:
    """What options make of a distribution at temperature 1."""

    def change(probs: Tensor) -> Tensor:
        # The context is read for penalties only, and there are none.
        return standardise(probs.log()[None, None], sampling, None, torch.zeros((1, 0), dtype=torch.int64))[0, 0]  # type: ignore[arg-type]

    return change


def places(
    llm: LLM, drafters: Mapping[str, Drafter], prompts: Sequence[Any], sampling: Sampling, tokens: int, seed: int
) -> Iterator[ScoredToken]:
    """The target writes up to ``tokens`` tokens behind every prompt with these options; all drafters look on."""
    for number, prompt in enumerate(prompts):
        yield from _text(llm, drafters, prompt, sampling, tokens, seed + number)


@torch.inference_mode()
def _text(
    llm: LLM, drafters: Mapping[str, Drafter], prompt: Any, sampling: Sampling, tokens: int, seed: int
) -> Iterator[ScoredToken]:
    call = llm.call(Options(max_new_tokens=tokens))
    request = call.requests([llm.encode(prompt)])[0]
    shape = call.decoder.shapes([request])[0]
    target = llm.target.model.start(1, shape)
    sessions = {name: drafter.start(1, shape, target) for name, drafter in drafters.items()}
    everybody: list[Session | DraftSession] = [target, *sessions.values()]
    for session in everybody:
        session.admit(0, request.prompt, request.source)
    noise = Noise(torch.tensor([seed], device=target.device))
    for _ in range(tokens):
        at = target.context.positions(2)
        drafts = {name: session.propose(1, ONE, noise.child("draft"), at) for name, session in sessions.items()}
        logits = target.score(at[:, :0])
        p = standardise(logits, ONE, target.context, at[:, :0])
        yield ScoredToken(p[0, 0].float().cpu(), {name: _q(draft, target.vocab_size) for name, draft in drafts.items()})
        chosen = standardise(logits, sampling, target.context, at[:, :0])
        token = noise.winner("token", at[:, :1], chosen)
        if int(token) in call.stopping.eos:
            return
        for session in everybody:
            session.commit(token, torch.ones_like(token[:, 0]))


def _q(draft: Draft, vocab_size: int) -> Tensor | None:
    draft = draft.usable(vocab_size)
    if draft.tokens.shape[1] == 0 or not bool(draft.proposed[0, 0]):
        return None
    if draft.probs is None:
        return torch.zeros(vocab_size).index_fill_(0, draft.tokens[0, :1].cpu(), 1.0)
    probs = draft.dense(vocab_size).probs
    assert probs is not None
    return probs[0, 0].float().cpu()


@dataclass(frozen=True)
class Mean:
    """An average over places, with its standard error."""

    value: float
    error: float
    count: int


class Means:
    """Averages by name."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        self._values[name].append(value)

    def of(self, name: str) -> Mean:
        values = torch.tensor(self._values[name], dtype=torch.float64)
        error = float(values.std()) / max(1, len(values)) ** 0.5 if len(values) > 1 else float("nan")
        return Mean(float(values.mean()), error, len(values))
