"""Row invariance of the kernels in use: a position's logits must not depend on what else is in the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.protocols import Session, Shape
from outrider.llm import LLM

Note = Callable[[str, Tensor, bool], None]
"""(what was changed, rows that stayed the same [n] bool, whether the promise rests on it)."""


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
    """Change later guesses, the place in the block, neighbours, the slot, the batch size, the capacity and prefill.

    The last three are part of the promise where the model's kernels were found to be batch-invariant.
    """
    found: dict[tuple[str, bool], list[Tensor]] = {}

    def note(change: str, same: Tensor, required: bool = True) -> None:
        found.setdefault((change, required), []).append(same)

    chance = torch.Generator().manual_seed(0)
    model = llm.target.model
    for number, prompt in enumerate(prompts):
        tails = torch.randint(model.vocab_size, (2, llm.width - 1), generator=chance).to(model.device)
        base = _in_one_run(llm, prompt, tails, note)
        if number < 2:  # crowded runs are slow, and every prompt would tell the same
            _in_a_crowd(llm, prompts, number, tails, base, slots, note)
    return [
        InvarianceResult(change, sum(len(s) for s in same), sum(int((~s).sum()) for s in same), required)
        for (change, required), same in found.items()
    ]


def _in_one_run(llm: LLM, prompt: Sequence[int], tails: Tensor, note: Note) -> Tensor:
    """Other guesses behind a position, and the position itself moved through the block -> logits [W, V]."""
    tail, other = tails[:1], tails[1:]
    guesses = tail.shape[1]
    session = _session(llm, [prompt])
    base = session.score(tail)[0].clone()
    half = guesses // 2
    mixed = session.score(torch.cat([tail[:, :half], other[:, half:]], 1))[0]
    note("other guesses after it", _same(base[: half + 1], mixed[: half + 1]), True)
    session.score(tail)
    one = torch.ones(1, dtype=torch.int64, device=tail.device)
    for shift in range(1, guesses):
        session.commit(tail[:, shift - 1 : shift], one, follows=False)
        note("another place in the block", _same(base[shift:], session.score(tail[:, shift:])[0]), True)
    facts = llm.target.model.facts
    note("twice the capacity", _same(base, _session(llm, [prompt], 2).score(tail)[0]), facts.capacity_invariant)
    if facts.batch_invariant and not facts.encoder_decoder and len(prompt) > 1:
        for count in (1, len(prompt) // 2):  # the rest of the prompt is run as guesses
            rest = torch.tensor([prompt[count:]], device=tail.device)
            again = _session(llm, [prompt[:count]], width=len(prompt) + guesses).score(torch.cat([rest, tail], 1))[0]
            note("prefilled in another way", _same(base, again[rest.shape[1] :]), True)
    return base


def _in_a_crowd(
    llm: LLM, prompts: Sequence[Sequence[int]], number: int, tails: Tensor, base: Tensor, slots: int, note: Note
) -> None:
    """Other rows beside it, another slot, and more slots than one."""
    prompt, tail, other = prompts[number], tails[:1], tails[1:]
    neighbours = [prompts[(number + k) % len(prompts)] for k in range(1, slots)]
    copies = _session(llm, [prompt] * slots).score(tail.expand(slots, -1)).clone()  # [slots, W, V]
    for place in (0, slots - 1):
        alone = copies[place]
        crowd = other.expand(slots, -1).clone()
        crowd[place] = tail[0]
        beside = _session(llm, [*neighbours[:place], prompt, *neighbours[place:]]).score(crowd)[place]
        note(f"other neighbours ({slots} slots)", _same(alone, beside), True)
        if place:
            note(f"another slot ({slots} slots)", _same(copies[0], alone), True)
        note(f"{slots} slots instead of 1", _same(base, alone), llm.target.model.facts.batch_invariant)


def _same(a: Tensor, b: Tensor) -> Tensor:
    """Row by row, to the last bit -> [rows] bool."""
    return (a == b).all(-1)


def _session(llm: LLM, prompts: Sequence[Sequence[int]], stretch: int = 1, width: int | None = None) -> Session:
    model, width = llm.target.model, width or llm.width
    capacity = 256 * stretch
    longest = max(len(p) for p in prompts)
    while capacity < longest + 3 * width:
        capacity *= 2
    session = model.start(len(prompts), Shape(capacity, width, 64 * (1 + longest // 64) * stretch, fixed=True))
    for row, prompt in enumerate(prompts):
        if model.encoder_decoder:
            session.admit(row, [llm.decoder_start or 0], prompt)
        else:
            session.admit(row, prompt)
    return session
