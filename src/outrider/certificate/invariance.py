"""Row invariance of the kernels in use: a position's logits must not depend on what else is in the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.llm import LLM
from outrider.types import Session, Shape


@dataclass(frozen=True)
class InvarianceResult:
    """One way of changing the surroundings of a row: how many logit rows changed in any bit."""

    change: str
    rows: int  # compared
    changed: int
    required: bool  # the promise rests on it; otherwise it is told for information

    @property
    def passed(self) -> bool:
        return self.changed == 0 or not self.required


def invariance(llm: LLM, prompts: Sequence[Sequence[int]], slots: int = 4) -> list[InvarianceResult]:
    """Change later guesses, the place in the block, neighbours, the slot, the batch size and the capacity."""
    guesses = llm.width - 1
    noise = torch.Generator().manual_seed(0)
    size = llm.target.model.vocab_size
    tails = torch.randint(size, (len(prompts), guesses), generator=noise).to(llm.target.model.device)
    found: dict[tuple[str, bool], list[Tensor]] = {}

    def note(change: str, same: Tensor, required: bool = True) -> None:
        found.setdefault((change, required), []).append(same)

    for number, prompt in enumerate(prompts):
        tail = tails[number : number + 1]
        other = tails.roll(1, 0)[number : number + 1] if len(prompts) > 1 else (tail + 1) % size
        base = _session(llm, [prompt]).score(tail)[0].clone()  # [W, V]
        half = guesses // 2
        mixed = torch.cat([tail[:, :half], other[:, half:]], 1)
        changed = _session(llm, [prompt]).score(mixed)[0]
        note("other guesses after it", _same(base[: half + 1], changed[: half + 1]))
        for shift in range(1, guesses):
            session = _session(llm, [prompt])
            session.score(tail)
            session.commit(tail[:, :shift], torch.full((1,), shift, device=tail.device))
            moved = session.score(tail[:, shift:])[0]
            note("another place in the block", _same(base[shift:], moved))
        neighbours = [prompts[(number + k) % len(prompts)] for k in range(1, slots)]
        for place in {0, slots - 1}:
            alone = _session(llm, _seat(prompt, [prompt] * (slots - 1), place)).score(tail.expand(slots, -1))
            crowd = torch.cat([other] * slots).clone()
            crowd[place] = tail[0]
            beside = _session(llm, _seat(prompt, neighbours, place)).score(crowd)
            first = _session(llm, _seat(prompt, [prompt] * (slots - 1), 0)).score(tail.expand(slots, -1))
            note(f"other neighbours ({slots} slots)", _same(alone[place], beside[place]))
            note(f"another slot ({slots} slots)", _same(first[0], alone[place]))
            note(f"{slots} slots instead of 1", _same(base, alone[place]), required=False)
        note("twice the capacity", _same(base, _session(llm, [prompt], 2).score(tail)[0]), required=False)
    return [
        InvarianceResult(change, sum(len(s) for s in same), sum(int((~s).sum()) for s in same), required)
        for (change, required), same in found.items()
    ]


def _same(a: Tensor, b: Tensor) -> Tensor:
    """Row by row, to the last bit -> [rows] bool."""
    return (a == b).all(-1)


def _seat(prompt: Sequence[int], others: Sequence[Sequence[int]], place: int) -> list[Sequence[int]]:
    rest = list(others)
    return [*rest[:place], prompt, *rest[place:]]


def _session(llm: LLM, prompts: Sequence[Sequence[int]], stretch: int = 1) -> Session:
    model = llm.target.model
    capacity = 256 * stretch
    longest = max(len(p) for p in prompts)
    while capacity < longest + 3 * llm.width:
        capacity *= 2
    session = model.start(len(prompts), Shape(capacity, llm.width, 64 * (1 + longest // 64) * stretch, fixed=True))
    for row, prompt in enumerate(prompts):
        if model.encoder_decoder:
            session.admit(row, [llm.decoder_start or 0], prompt)
        else:
            session.admit(row, prompt)
    return session
