"""Bit identity: every drafter, gamma and prompt against plain decoding by the same engine, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.decoding.loop import bucket
from outrider.drafters.base import ContextSession
from outrider.llm import LLM
from outrider.output import Output


@dataclass(frozen=True)
class Mismatch:
    """The first place where two texts differ, and how close the two tokens were in each run's logits."""

    prompt: int
    seed: int | None
    position: int  # of the new token
    plain_token: int
    speculative_token: int
    plain_gap: float  # logit of the plain token minus that of the other, as plain decoding saw it
    speculative_gap: float  # the same, as the speculative run saw it


@dataclass(frozen=True)
class IdentityResult:
    """One drafter at one gamma over all rows."""

    drafter: str
    gamma: int
    slots: int
    seeds: tuple[int, ...]  # of the rows; none at temperature 0
    tokens: int  # compared
    mismatches: int  # tokens that differ
    alpha: float
    tokens_per_run: float
    first: Mismatch | None
    error: str | None = None  # of the drafter or of the model
    tree: int | None = None  # guesses of a run at most, where they are a tree of gamma levels
    branched: int = 0  # runs whose tree had more guesses than levels: several candidates for one position

    @property
    def passed(self) -> bool:
        return self.mismatches == 0 and self.tokens > 0 and self.error is None


class Rehearsed:
    """Proposes a known text with a share of its tokens spoilt: every number of accepted guesses occurs, for free."""

    def __init__(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]], spoilt: float) -> None:
        self.texts: dict[tuple[int, ...], list[list[int]]] = {}  # a prompt may occur with several seeds, in order
        for prompt, text in texts:
            self.texts.setdefault(tuple(prompt), []).append(list(text))
        self.spoilt, self.name = spoilt, f"its text {1 - spoilt:.0%}"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _RehearsedSession(self, rows, shape, target)


class _RehearsedSession(ContextSession):
    def __init__(self, drafter: Rehearsed, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.drafter = drafter
        self.script = torch.zeros_like(self.context.tokens)
        self.turns: dict[tuple[int, ...], int] = {}

    def admit(self, row: int, prompt: Sequence[int], source: Any = None) -> None:
        super().admit(row, prompt, source)
        key = tuple(source) if source is not None else tuple(prompt)
        turn = self.turns[key] = self.turns.get(key, -1) + 1
        texts = self.drafter.texts[key]
        whole = [*prompt, *texts[turn % len(texts)]][: self.context.capacity]
        self.script[row, : len(whole)] = torch.tensor(whole, device=self.script.device)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        if gamma == 0:
            return Draft.empty(self.context.rows, self.context.device)
        places = at[:, :gamma].clamp(max=self.context.capacity - 1)
        spoil = Noise(self.context.prompt_lengths, "rehearsed").uniform("spoil", places) < self.drafter.spoilt
        tokens = torch.where(spoil, (places * 7919 + 13) % self.vocab_size, self.script.gather(1, places))
        return Draft(tokens, None, self.context.active[:, None].expand(-1, gamma))


@dataclass(frozen=True)
class Rows:
    """What is decoded with and without speculation: prompts, options, and a seed each at temperature 1."""

    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    seeds: tuple[int, ...] = ()

    def generate(self, llm: LLM, gamma: int | None = None, tree: int | None = None) -> list[Output]:
        options: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "eos": (), "gamma": gamma, "tree": tree}
        if self.seeds:
            options |= {"temperature": 1.0, "coupling": "gumbel", "seed": list(self.seeds)}
        outputs: list[Output] = llm.generate([list(p) for p in self.prompts], **options)
        return outputs


def compare(
    llm: LLM,
    rows: Rows,
    plain: Sequence[Output],
    drafters: Sequence[Drafter],
    gammas: Sequence[int],
    tree: int | None = None,
) -> Iterator[IdentityResult]:
    """One result per drafter and gamma, as they finish."""
    for drafter in drafters:
        engine = LLM(llm.target, drafter, width=llm.width, slots=llm.slots, exact=llm.exact, graphs=llm.graphs)
        for gamma in gammas:
            outputs = rows.generate(engine, gamma, tree)
            found = _result(engine, rows, gamma, plain, outputs)
            yield found if tree is None else replace(found, tree=tree, branched=_branched(outputs, gamma))


def _branched(outputs: Sequence[Output], levels: int) -> int:
    return sum((record.nodes or 0) > levels for output in outputs for record in output.trace.records)


def _result(llm: LLM, rows: Rows, gamma: int, plain: Sequence[Output], outputs: Sequence[Output]) -> IdentityResult:
    compared = mismatched = 0
    first = None
    for index, (one, two) in enumerate(zip(plain, outputs, strict=True)):
        length = max(len(one.tokens), len(two.tokens))
        compared += length
        same = [a == b for a, b in zip(one.tokens, two.tokens, strict=False)]
        mismatched += length - sum(same)
        if first is None and not (all(same) and len(one.tokens) == len(two.tokens)):
            place = same.index(False) if False in same else min(len(one.tokens), len(two.tokens)) - 1
            first = _explain(llm, index, rows, (one, two), place)
    records = [record for output in outputs for record in output.trace.records]
    examined = sum(r.examined for r in records)
    alpha = sum(r.accepted for r in records) / examined if examined else float("nan")
    per_run = sum(r.emitted for r in records) / max(1, len(records))
    errors = [e for o in (*plain, *outputs) for e in (o.error, o.trace.drafter_error) if e]
    return IdentityResult(
        llm.drafter.name, gamma, llm.slots or 1, rows.seeds, compared, mismatched, alpha, per_run, first,
        errors[0] if errors else None,
    )  # fmt: skip


def _explain(llm: LLM, index: int, rows: Rows, outputs: tuple[Output, Output], place: int) -> Mismatch:
    """Replay both runs up to the difference and read the logits each of them saw."""
    prompt, seed = rows.prompts[index], rows.seeds[index] if rows.seeds else None
    a, b = (output.tokens[place] for output in outputs)
    gaps = (_gap(llm, prompt, output, place, (a, b)) for output in outputs)
    return Mismatch(index, seed, place, a, b, *gaps)


def _gap(llm: LLM, prompt: Sequence[int], output: Output, place: int, pair: tuple[int, int]) -> float:
    """How much higher the first of two tokens stood than the second in the run that gave token ``place``."""
    model, slots = llm.target.model, llm.slots or 1
    opening = [llm.decoder_start or 0] if model.encoder_decoder else list(prompt)
    start = len(opening)
    run = next(r for r in output.trace.records if r.position <= start + place < r.position + r.emitted)
    shape = Shape(bucket(start + len(output.tokens) + 3 * llm.width), llm.width, bucket(len(prompt), least=64))
    session = model.start(slots, shape)
    session.admit(0, opening, list(prompt) if model.encoder_decoder else None)  # the other slots are padding

    def spread(tokens: Sequence[int]) -> Tensor:
        return torch.tensor([list(tokens)] * slots, dtype=torch.int64, device=model.device).reshape(slots, -1)

    for token in output.tokens[: run.position - start]:  # as plain decoding would: every token in a run of its own
        session.score(spread([]))
        session.commit(spread([token]), torch.ones(slots, dtype=torch.int64, device=model.device))
    row = session.score(spread(run.drafted))[0, start + place - run.position].float()
    return float(row[pair[0]] - row[pair[1]])
