"""Where a test of the distribution tells most: the place in the texts at which a wrong rule would change it most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.core.protocols import Session, Shape
from outrider.core.sampling import Sampling, standardise
from outrider.llm import LLM
from outrider.models.toy import ToyModel

KEPT = 3
"""Tokens the tests choose among, so that pairs of them can be counted."""

TEMPERATURES = (0.25, 4.0)
"""Of the draft: the target itself, colder or hotter, is a draft unlike the target for any model."""


@dataclass(frozen=True)
class Place:
    """A text so far, its likeliest next tokens, and the target's distributions of two tokens among them as a table."""

    prefix: list[int]
    source: list[int] | None  # what the encoder reads, if there is one
    temperature: float  # of the draft
    distance: float  # total variation by which a forgotten residual moves the next token's distribution
    tokens: Tensor  # [K]: the tokens to choose among; number 1 to K in the table
    table: ToyModel
    bias: float  # lifts any token above all others

    def among(self, count: int) -> Place:
        """The same with the ``count`` likeliest tokens only: fewer outcomes, which fewer draws can tell apart."""
        narrow, size = ToyModel(count + 1, order=2), KEPT + 1
        block = self.table.table.reshape(size, size, size)[: count + 1, : count + 1, : count + 1]
        narrow.table = block.reshape(-1, count + 1)
        return replace(self, tokens=self.tokens[:count], table=narrow)

    @property
    def table_prompt(self) -> list[int]:
        """Number 0 stands for the prefix."""
        return [0, 0]

    @property
    def sampling(self) -> Sampling:
        """Temperature 1 among these tokens only. A cut by top-k would depend on rounding where two tokens tie."""
        return Sampling(temperature=1.0, logit_bias={int(token): self.bias for token in self.tokens})

    @property
    def draft_name(self) -> str:
        return f"target, t {self.temperature:g}"


def most_telling(llm: LLM, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Place:
    """Of all places in the answers to the prompts: the one where the mistake of ``wrong_residual`` shows most."""
    distance, temperature, prefix, source = max(_candidates(llm, texts), key=lambda candidate: candidate[0])
    return Place(prefix, source, temperature, distance, *_tabled(llm, prefix, source))


def _candidates(
    llm: LLM, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Iterator[tuple[float, float, list[int], list[int] | None]]:
    sampling = Sampling(temperature=1.0, top_k=KEPT)
    for prompt, answer in texts:
        encoder = llm.target.model.encoder_decoder
        opening, source = ([llm.decoder_start or 0], list(prompt)) if encoder else (list(prompt), None)
        answer = list(answer)[:-1]
        session = _started(llm, opening, source, 1 + len(answer))
        tail = torch.tensor([answer], dtype=torch.int64, device=llm.target.model.device)
        logits = session.score(tail)
        p = standardise(logits, sampling, session.context, tail)[0]  # [n + 1, V]
        for temperature in TEMPERATURES:
            q = standardise(logits, replace(sampling, temperature=temperature), session.context, tail)[0]
            shared = torch.minimum(p, q)
            moved = (shared - shared.sum(-1, keepdim=True) * p).abs().sum(-1) / 2  # [n + 1]
            where = int(moved.argmax())
            yield float(moved[where]), temperature, [*opening, *answer[:where]], source


def _started(llm: LLM, opening: list[int], source: list[int] | None, width: int) -> Session:
    room = 64 * (2 + (len(opening) + 2 * width) // 64)
    session = llm.target.model.start(1, Shape(room, width, source_capacity=len(source or ())))
    session.admit(0, opening, source)
    return session


def _tabled(llm: LLM, prefix: list[int], source: list[int] | None) -> tuple[Tensor, ToyModel, float]:
    """The likeliest tokens after the prefix, the target's logits over them there and after each, and the bias."""
    session = _started(llm, prefix, source, 2)
    nothing = torch.zeros((1, 0), dtype=torch.int64, device=llm.target.model.device)
    before = session.score(nothing)[0, 0]  # [V]
    tokens = before.topk(KEPT).indices  # [K]
    session.select(torch.zeros_like(tokens))
    after = session.score(tokens[:, None])[:, 1]  # [K, V]
    table = ToyModel(KEPT + 1, order=2)
    rows = torch.zeros((KEPT + 1,) * 3, dtype=torch.float64)  # [before last, last, next]
    rows[..., 0] = -torch.inf  # nothing goes back to the start
    rows[0, 0, 1:] = before[tokens].double().cpu()
    rows[0, 1:, 1:] = after[:, tokens].double().cpu()
    table.table = rows.reshape(-1, KEPT + 1)
    seen = torch.cat([before[None], after]).float()
    seen = seen[seen.isfinite()]
    return tokens.cpu(), table, 100.0 + float(seen.max() - seen.min())
