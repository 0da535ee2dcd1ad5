"""Bit identity: every drafter, gamma and prompt against plain decoding by the same engine, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.decoding.decoder import bucket
from outrider.drafters.base import ContextSession
from outrider.llm import LLM, Output
from outrider.noise import Noise
from outrider.sampling import Sampling
from outrider.types import Draft, Drafter, DraftSession, Session, Shape


@dataclass(frozen=True)
class Mismatch:
    """The first place where two texts differ, and how close the two tokens were in each run's logits."""

    prompt: int
    position: int  # of the new token
    plain_token: int
    speculative_token: int
    plain_gap: float  # logit of the plain token minus that of the other, as plain decoding saw it
    speculative_gap: float  # the same, as the speculative run saw it


@dataclass(frozen=True)
class IdentityResult:
    """One drafter at one gamma (and seed) over all prompts."""

    drafter: str
    gamma: int
    seed: int | None  # None at temperature 0
    tokens: int  # compared
    mismatches: int  # tokens that differ
    alpha: float
    tokens_per_run: float
    first: Mismatch | None
    drafter_error: str | None = None

    @property
    def passed(self) -> bool:
        return self.mismatches == 0 and self.tokens > 0 and self.drafter_error is None


class Rehearsed:
    """Proposes a known text with a share of its tokens spoilt: every number of accepted guesses occurs, for free."""

    def __init__(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]], spoilt: float) -> None:
        self.texts = {tuple(prompt): list(text) for prompt, text in texts}
        self.spoilt, self.name = spoilt, f"its text, {1 - spoilt:.0%} right"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _RehearsedSession(self, rows, shape, target)


class _RehearsedSession(ContextSession):
    def __init__(self, drafter: Rehearsed, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.drafter = drafter
        self.script = torch.zeros_like(self.context.tokens)

    def admit(self, row: int, prompt: Sequence[int], source: Any = None) -> None:
        super().admit(row, prompt, source)
        key = tuple(source) if source is not None else tuple(prompt)
        whole = [*prompt, *self.drafter.texts[key]][: self.context.capacity]
        self.script[row, : len(whole)] = torch.tensor(whole, device=self.script.device)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        if gamma == 0:
            return Draft.empty(self.context.rows, self.context.device)
        places = at[:, :gamma].clamp(max=self.context.capacity - 1)
        spoil = Noise(self.context.prompt_lengths, "rehearsed").uniform("spoil", places) < self.drafter.spoilt
        tokens = torch.where(spoil, (places * 7919 + 13) % self.vocab_size, self.script.gather(1, places))
        return Draft(tokens, None, self.context.active[:, None].expand(-1, gamma))


def compare(
    llm: LLM, drafters: Sequence[Drafter], gammas: Sequence[int], prompts: Sequence[Sequence[int]],
    plain: Sequence[Output], options: dict[str, Any], seed: int | None,
) -> Iterator[IdentityResult]:  # fmt: skip
    """One result per drafter and gamma, as they finish."""
    for drafter in drafters:
        for gamma in gammas:
            engine = LLM(llm.target, drafter, width=llm.width, slots=llm.slots, exact=llm.exact)
            outputs: list[Output] = engine.generate(list(prompts), gamma=gamma, **options)
            yield _result(llm, drafter.name, gamma, seed, prompts, plain, outputs)


def _result(
    llm: LLM, name: str, gamma: int, seed: int | None, prompts: Sequence[Sequence[int]],
    plain: Sequence[Output], outputs: Sequence[Output],
) -> IdentityResult:  # fmt: skip
    compared = mismatched = 0
    first = None
    for index, (one, two) in enumerate(zip(plain, outputs, strict=True)):
        length = max(len(one.tokens), len(two.tokens))
        compared += length
        same = [a == b for a, b in zip(one.tokens, two.tokens, strict=False)]
        mismatched += length - sum(same)
        if first is None and not (all(same) and len(one.tokens) == len(two.tokens)):
            place = same.index(False) if False in same else min(len(one.tokens), len(two.tokens)) - 1
            first = _explain(llm, index, prompts[index], one, two, place)
    records = [record for output in outputs for record in output.trace.records]
    examined = sum(r.examined for r in records)
    alpha = sum(r.accepted for r in records) / examined if examined else float("nan")
    per_run = sum(r.emitted for r in records) / max(1, len(records))
    failed = next((o.trace.drafter_error for o in outputs if o.trace.drafter_error), None)
    return IdentityResult(name, gamma, seed, compared, mismatched, alpha, per_run, first, failed)


def _explain(llm: LLM, index: int, prompt: Sequence[int], plain: Output, other: Output, place: int) -> Mismatch:
    """Replay both runs up to the difference and read the logits each of them saw."""
    a, b = plain.tokens[place], other.tokens[place]

    model = llm.target.model
    encoder = model.encoder_decoder
    opening = [llm.decoder_start or 0] if encoder else list(prompt)

    def gap(output: Output) -> float:
        start = len(opening)
        run = next(r for r in output.trace.records if r.position <= start + place < r.position + r.emitted)
        session = model.start(
            1, Shape(bucket(start + len(output.tokens) + 3 * llm.width), llm.width, bucket(len(prompt)))
        )
        session.admit(0, opening, list(prompt) if encoder else None)
        for token in output.tokens[: run.position - start]:  # as plain decoding would: every token in a run of its own
            session.score(torch.zeros((1, 0), dtype=torch.int64, device=model.device))
            session.commit(
                torch.tensor([[token]], device=model.device), torch.ones(1, dtype=torch.int64, device=model.device)
            )
        logits = session.score(torch.tensor([run.drafted], dtype=torch.int64, device=model.device).reshape(1, -1))
        row = logits[0, start + place - run.position].float()
        return float(row[a] - row[b])

    return Mismatch(index, place, a, b, gap(plain), gap(other))
