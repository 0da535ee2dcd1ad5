"""Continuous batching for generated training text on a GPU: a text that ends gives its slot to the next one.

Every slot has its own position in its own text, as rows of a session have, and attention reads its KV cache up to that
position only. So thousands of texts of any length are written without padding. A step costs the host one launch of a
CUDA graph, and a few small kernels for sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from outrider.core.protocols import Shape
from outrider.models.cached_session import CachedSession
from outrider.models.transformers.kv_cache import GrowingCache
from outrider.models.transformers.model import HuggingFaceModel

KeepGoing = Callable[[int, int], bool]
"""Called while texts are written, with (texts, tokens of them so far). False: end them where they are."""

LOOK_EVERY = 16
"""Steps between checks of which texts have ended: each check is a host-device sync."""

READ_AT_ONCE = 65_536
"""Tokens of prompts in one prefill run."""


def roll(
    model: HuggingFaceModel,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    rows: int,
    choose: Callable[[Tensor], Tensor],
    keep_going: KeepGoing = lambda texts, tokens: True,
) -> Iterator[tuple[Sequence[int], list[int]]]:
    """Answers to prompts as (prompt, answer), in the order they end; ``choose``: logits [B, V] -> tokens [B].

    Once ``keep_going`` says no, texts that have not ended are given as far as they are; so they are on Ctrl-C, which is
    raised again behind them.
    """
    capacity = max(map(len, prompts)) + new_tokens
    slots = _Slots(model, min(rows, len(prompts)), capacity, new_tokens)
    owners: list[int | None] = [None] * slots.context.rows
    begun = finished = 0
    while True:
        free = [slot for slot, owner in enumerate(owners) if owner is None]
        if begun < len(prompts) and len(free) >= max(1, len(owners) // 16):  # few large runs rather than many small
            fresh = range(begun, min(len(prompts), begun + len(free)))
            chosen = dict(zip(free, fresh, strict=False))
            for slot, number in chosen.items():
                owners[slot] = number
            begun = fresh.stop
            slots.begin({slot: prompts[number] for slot, number in chosen.items()})
        if all(owner is None for owner in owners):
            return
        pressed: KeyboardInterrupt | None = None
        try:
            for _ in range(LOOK_EVERY):
                slots.step(choose)
        except KeyboardInterrupt as error:
            pressed = error
        for slot, answer in slots.ended():
            owner, owners[slot] = owners[slot], None
            if owner is not None:
                finished += len(answer)
                yield prompts[owner], answer
        if pressed is not None or not keep_going(begun, finished + slots.unfinished()):
            slots.going.fill_(False)
            for slot, answer in slots.ended():
                if (owner := owners[slot]) is not None:
                    yield prompts[owner], answer
            if pressed is not None:
                raise pressed
            return


class _Slots(CachedSession):
    """Rows that write, each one token a step."""

    def __init__(self, model: HuggingFaceModel, rows: int, capacity: int, most: int) -> None:
        super().__init__(model, rows, Shape(capacity=capacity, width=1))
        self._writes = model
        numbers: dict[str, Any] = {"dtype": torch.int64, "device": model.device}
        self.tokens = torch.zeros((rows, 1), **numbers)  # the last of each text, yet to be read
        self.positions = torch.zeros((rows, 1), **numbers)
        self.written = torch.zeros((rows, most), **numbers)
        self.count = torch.zeros(rows, **numbers)  # tokens written
        self.room = torch.zeros(rows, **numbers)  # tokens that can be
        self.going = torch.zeros(rows, dtype=torch.bool, device=model.device)
        self.ends = torch.tensor(sorted(ends_of(model)), **numbers)
        self._logits = _recorded(lambda: self._feed(self.tokens, self.positions)[0][:, -1], model.device)

    def begin(self, prompts: dict[int, Sequence[int]]) -> None:
        """Read a prompt in each of some slots."""
        batch: list[int] = []
        for slot in sorted(prompts, key=lambda s: len(prompts[s])):
            if batch and (len(batch) + 1) * len(prompts[slot]) > READ_AT_ONCE:
                self._read(batch, [prompts[s] for s in batch])
                batch = []
            batch.append(slot)
        self._read(batch, [prompts[s] for s in batch])

    @torch.no_grad()
    def _read(self, slots: list[int], prompts: Sequence[Sequence[int]]) -> None:
        device, most = self._writes.device, self.written.shape[1]
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        longest = max(map(len, prompts))
        ids = torch.tensor([[*p, *[0] * (longest - len(p))] for p in prompts], device=device)
        cache = GrowingCache(longest)
        only_last = {"logits_to_keep": 1} if "logits_to_keep" in self._writes.accepts else {}
        # Causal, so nothing sees the padding behind its text: what is cached of it is overwritten before it is read.
        self._writes.model(input_ids=ids, past_key_values=cache, use_cache=True, **only_last)
        where = torch.tensor(slots, device=device)
        for (keys, values), layer in zip(self.cache.buffers(), cache.layers, strict=True):
            keys[where, :, :longest], values[where, :, :longest] = layer.keys, layer.values
        self.tokens[where, 0] = ids.gather(1, lengths[:, None] - 1)[:, 0]  # read again by the first step
        self.positions[where, 0] = lengths - 1
        limit = self._writes.max_length
        self.room[where] = torch.full_like(lengths, most) if limit is None else (limit - lengths).clamp(max=most)
        self.count[where] = 0
        self.going[where] = True

    @torch.no_grad()
    def step(self, choose: Callable[[Tensor], Tensor]) -> None:
        """One more token for every text that has not ended."""
        token = choose(self._logits().float())
        here = self.count.clamp(max=self.written.shape[1] - 1)[:, None]
        self.written.scatter_(1, here, torch.where(self.going[:, None], token[:, None], self.written.gather(1, here)))
        self.count += self.going
        self.going &= ~torch.isin(token, self.ends) & (self.count < self.room)
        self.tokens.copy_(token[:, None])  # in place: the CUDA graph reads this very memory
        self.positions += self.going[:, None]

    def unfinished(self) -> int:
        """Tokens of the texts that have not ended."""
        return int((self.count * self.going).sum())

    def ended(self) -> list[tuple[int, list[int]]]:
        """Slots without a text to go on with, and what stands in them."""
        slots = (~self.going).nonzero()[:, 0]
        texts, counts = self.written[slots].tolist(), self.count[slots].tolist()
        return [(s, text[:n]) for s, text, n in zip(slots.tolist(), texts, counts, strict=True)]


def ends_of(model: HuggingFaceModel) -> set[int]:
    ends = model.model.generation_config.eos_token_id
    return {ends} if isinstance(ends, int) else set(ends or ())


def _recorded(step: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """The same step as one launch, on a GPU; what it returns is always the same memory there."""
    if device.type != "cuda":
        return step
    aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):  # kernels are built and libraries prepared before anything is captured
        for _ in range(2):
            step()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay
