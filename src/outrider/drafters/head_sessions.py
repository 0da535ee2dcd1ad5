"""Drafting with a trained head: what is kept from guess to guess and from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.numpy_ops import largest
from outrider.core.protocols import Draft, Session, Shape, Source
from outrider.core.sampling import Sampling, standardise
from outrider.drafters import head_fused
from outrider.drafters.base import ContextSession, Reach
from outrider.drafters.compiled_row import CompiledRow, Draw, table_of
from outrider.drafters.head_layers import Head, Memory
from outrider.drafters.one_row import OneRow
from outrider.drafters.prices import Prices
from outrider.drafters.ready_head import ReadyHead
from outrider.kernels.packed_linear import product


class _HeadSession(ContextSession):
    """Drafting with a head: subclasses say which states stand behind the guesses."""

    capturable = True
    prices: Prices | None = None  # what guesses take here and time is worth, where a policy tells
    alone: OneRow | CompiledRow | None = None  # drafts for one row on a CPU, without what ``ready.batched`` makes

    def __init__(self, ready: ReadyHead, floor: float, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        assert target.embedding is not None
        self.ready, self.floor, self.target = ready, floor, target
        self.embedding = target.embedding.detach()

    @property
    def head(self) -> Head:
        return self.ready.batched[0]

    @property
    def fused(self) -> bool:
        return self.alone is None and self.ready.batched[2]

    def begin(self, gamma: int) -> int:
        """Before the first guess; -> how many guesses there can be."""
        raise NotImplementedError

    def state(self, k: int, last: Tensor) -> Tensor:
        """The state behind guess k (from 0), drawn after token ``last`` [B] -> [B, size]."""
        raise NotImplementedError

    def logits(self, k: int, last: Tensor) -> Tensor:
        """Of the N tokens for guess k, drawn after token ``last`` [B] -> [B, N]."""
        state, output = self.state(k, last), self.ready.batched[1]
        return head_fused.product(state, output) if self.fused else product(state, output, None)

    @torch.no_grad()
    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        rows = self.context.rows
        gamma = self.begin(gamma) if gamma else 0
        if gamma == 0:  # or a fork has used up what one look at the target gave
            return Draft.empty(rows, self.device)
        last = self.context.read(self.context.lengths - 1, 1)[:, 0]
        tokens: list[Tensor] = []
        probs, proposed = [], []
        reach = Reach(self.floor, self.context.active, self.prices, gamma)
        for k in range(gamma):
            logits = self.logits(k, last)
            last, q = self._draw(logits, sampling, noise, tokens, at[:, k : k + 1])
            tokens.append(last)
            probs.append(q)
            proposed.append(reach.going)
            reach.took(q, logits, sampling)
            sampling = sampling if q is None else sampling.behind(q)
            if reach.over:
                break
        known = [q for q in probs if q is not None]
        return self._drafted(torch.stack(tokens, 1), torch.stack(known, 1) if known else None, torch.stack(proposed, 1))

    def _drafted(self, tokens: Tensor, q: Tensor | None, proposed: Tensor) -> Draft:
        """q [B, G, N] may be of the tokens that the head knows only."""
        trimmed = q is not None and q.shape[-1] < self.vocab_size
        return Draft(tokens, q, proposed, support=self.ready.tokens if trimmed else None)

    @property
    def device(self) -> torch.device:
        return self.context.device

    def _draw(
        self, logits: Tensor, sampling: Sampling, noise: Noise, guesses: list[Tensor], at: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """A token [B] and the distribution it came from, over N tokens or, where options ask for tokens, over all.

        At temperature 0 a point mass needs no table.
        """
        if not sampling.adjusts:
            if sampling.greedy:
                tokens = self.ready.tokens
                return head_fused.likeliest(logits, tokens) if self.fused else tokens[largest(logits)], None
            q = standardise(logits[:, None], sampling, self.context, at[:, :0])
            return self.ready.tokens[noise.winner("token", at, q, self.ready.counter)[:, 0]], q[:, 0]
        full = torch.full((logits.shape[0], self.vocab_size), -torch.inf, device=self.device)
        full[:, self.ready.tokens] = logits.to(torch.float32)
        ahead = self.context.ahead(torch.stack(guesses, 1) if guesses else at[:, :0])
        q = standardise(full[:, None], sampling, ahead, at[:, :0])
        return noise.winner("token", at, q)[:, 0], q[:, 0]


class BlockwiseSession(_HeadSession):
    """All guesses from one look at the target's last state; a fork goes on with what is left of that look."""

    supposed: Tensor | None = None  # of a fork: [B, k, size], the states behind its next guesses

    def begin(self, gamma: int) -> int:
        self.fan = self._look() if self.supposed is None else self.supposed
        return min(gamma, self.fan.shape[1])

    def state(self, k: int, last: Tensor) -> Tensor:
        return self.fan[:, k]

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        super().commit(tokens, count)
        if self.supposed is not None:
            left = torch.arange(max(0, self.supposed.shape[1] - tokens.shape[1]), device=self.device)
            self.supposed = self.supposed[torch.arange(len(count), device=self.device)[:, None], left + count[:, None]]

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.supposed = None if self.supposed is None else self.supposed.index_select(0, rows)

    def fork(self, rows: Tensor) -> Self:
        other = super().fork(rows)
        if other.supposed is None:
            other.supposed = self._look().index_select(0, rows)
        return other

    @torch.no_grad()
    def _look(self) -> Tensor:
        assert self.target.hidden is not None
        last = self.context.read(self.context.lengths - 1, 1)[:, 0]
        return self.head.fan(self.target.hidden, self.embedding[last])  # [B, k, size]


class FeatureSession(_HeadSession):
    """Guess after guess, each on the state behind the one before.

    The target keeps its states by position, as it keeps its keys and values. So does the head its own keys: at each
    commit, whether it drafts or not, it makes those of the newest W tokens again, whose states have come true since.
    Rollback is nothing here either, and every shape stays constant. One row on a CPU has no neighbours to keep in
    step with: there keys are made when they are needed (``one_row.py``).

    A fork is told tokens that the target has not run: there the head's own states stand for the target's.
    """

    supposed: Tensor | None = None  # of a fork: [B, 1, size], what it reads behind the newest token

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return self.alone is None

    def __init__(self, ready: ReadyHead, floor: float, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(ready, floor, rows, shape, target)
        target.keep_states(ready.config.layers)
        self.width = shape.width
        self.slots = torch.arange(shape.capacity, device=target.device)  # [C]
        self.memory: Memory | None = None
        alone = ready.alone if rows == 1 else None
        heads, shared = ready.config.heads
        self.attends = heads > 0
        if self.attends:
            kept = (2, rows, shared, shape.capacity, ready.config.hidden_size // heads)
            dtype = torch.float32 if alone is not None else self.embedding.dtype
            self.keys, self.values = torch.zeros(kept, dtype=dtype, device=self.device)
        memory = (self.keys[0], self.values[0]) if self.attends else None
        self.alone = None if alone is None else alone.row(memory)

    @torch.no_grad()
    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        super().admit(row, prompt, source)
        if self.attends:
            self.keys[row], self.values[row] = 0, 0
        if self.alone is not None:
            self.alone.made = 0
        elif self.attends and len(prompt) > 1:
            self._remember(torch.tensor([row], device=self.device), self.slots[None, : len(prompt) - 1])

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        if self.supposed is None:
            super().commit(tokens, count)
            if self.alone is None:
                self._remember_newest()
            return
        for k in range(tokens.shape[1]):
            self._suppose(self.supposed, tokens[:, k : k + 1], k < count)

    def rewind(self, lengths: Tensor) -> None:
        super().rewind(lengths)
        if self.alone is not None:
            self.alone.forget_after(int(self.context.lengths))

    def select(self, rows: Tensor) -> None:
        self._join_others()
        super().select(rows)
        self.supposed = None if self.supposed is None else self.supposed.index_select(0, rows)
        if self.attends:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    @torch.no_grad()
    def fork(self, rows: Tensor) -> Self:
        batched = copy(self)
        batched._join_others()
        batched.begin(1)  # reads the newest states: the fork cannot
        other = super(FeatureSession, batched).fork(rows)
        other.supposed = batched.x.index_select(0, rows)
        return other

    @torch.no_grad()
    def _join_others(self) -> None:
        """Go on as one of several rows: with memory of its own, all of it made as theirs is."""
        if self.alone is not None:
            self.alone = None
            if self.attends:
                self.keys, self.values = (kept.to(self.embedding.dtype, copy=True) for kept in (self.keys, self.values))
                self._remember(self.rows, self.slots[None, : int(self._newest()) + 1])

    def begin(self, gamma: int) -> int:
        if self.alone is not None:
            return gamma if self._read_alone(self.alone) else 0
        place = self._newest()
        self.x = self._remember(self.rows, place[:, None]) if self.supposed is None else self.supposed  # [B, 1, size]
        self.places = place[:, None] + torch.arange(gamma, device=self.device)  # [B, G]
        if self.attends:
            self.memory = Memory(self.keys, self.values, None if self.fused else self._visible(place[:, None]))
        return gamma

    @torch.no_grad()
    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        alone, greedy = self.alone, sampling.greedy
        plain = not sampling.adjusts and (greedy or not sampling.filters)
        table = table_of(self.embedding) if isinstance(alone, CompiledRow) and plain else None
        if not isinstance(alone, CompiledRow) or table is None or not bool(self.context.active):
            return super().propose(gamma, sampling, noise, at)
        if gamma == 0 or not self._read_alone(alone):
            return Draft.empty(1, self.device)
        floors = [self.floor] * gamma
        if self.prices is not None and self.floor > 0:
            floors = self.prices.floors(0, gamma)
        draw = None
        if not greedy:
            draw = Draw(sampling.temperature, noise.keys("token", at[:, :gamma])[0], self.ready.counter)
        alone.reads = self.embedding
        tokens, q = alone.draft(table, self.ready.tokens, floors, draw)
        return self._drafted(
            tokens[None], None if q is None else q[None], torch.ones_like(tokens[None], dtype=torch.bool)
        )

    def state(self, k: int, last: Tensor) -> Tensor:
        place = self.places[:, k : k + 1]
        if k > 0:
            self.x = self.head.read_token(self.x, self.embedding, last[:, None])
            if self.memory is not None and self.head.attention is not None:
                self.head.attention.note(self.x, place, self.memory)
        self.x = self.head.think(self.x, place, self.memory)
        return self.x[:, 0]

    def logits(self, k: int, last: Tensor) -> Tensor:
        if self.alone is None:
            return super().logits(k, last)
        return self.alone.guess(self.embedding[last] if k else None)

    def _read_alone(self, alone: OneRow | CompiledRow) -> bool:
        """What was committed since; whether there is anything to draft from."""
        length, states = int(self.context.lengths), self.target.states
        assert states is not None
        if length < 2:  # the target has run nothing yet
            return False
        start = min(alone.made, length - 2)
        alone.read(states[0, start : length - 1], self.embedding[self.context.tokens[0, start + 1 : length]], start)
        return True

    def _visible(self, place: Tensor) -> Tensor:
        """From place [B, 1], of the text -> [B, 1, 1, 1, C]."""
        return ((self.slots <= place) & (self.slots > place - self.ready.config.window))[:, None, None, None]

    def _newest(self) -> Tensor:
        """[B]: the newest token whose state is known, or supposed."""
        return (self.context.lengths - 2).clamp(min=0)

    @property
    def rows(self) -> Tensor:
        return torch.arange(self.context.rows, device=self.device)

    @torch.no_grad()
    def _remember_newest(self) -> None:
        """No more than W tokens are committed at a time, so no key stays unmade."""
        if self.attends:
            start = (self._newest() + 1 - self.width).clamp(min=0)
            self._remember(self.rows, start[:, None] + torch.arange(self.width, device=self.device))

    @torch.no_grad()
    def _suppose(self, before: Tensor, token: Tensor, real: Tensor) -> None:
        """Another token [B, 1] behind rows where real [B]: what the head would read there, and its keys."""
        self.begin(1)
        read = self.head.read_token(self.state(0, token)[:, None], self.embedding, token)
        self.supposed = torch.where(real[:, None, None], read, before)  # [B, 1, size]
        super().commit(token, real.to(torch.int64))
        if self.head.attention is not None:
            self.head.attention.store(self.supposed, self._newest()[:, None], (self.keys, self.values))

    def _remember(self, rows: Tensor, positions: Tensor) -> Tensor:
        """What the head reads at positions [R, T] of these rows -> [R, T, size]; its keys are kept."""
        states = self.target.states
        assert states is not None
        tokens = self.context.tokens[rows[:, None], positions + 1]
        x = self.head.read_token(self.head.seen(states[rows[:, None], positions]), self.embedding, tokens)
        if self.head.attention is not None:
            self.head.attention.store(x, positions, (self.keys, self.values), rows)
        return x
