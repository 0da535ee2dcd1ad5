"""Small trained heads that draft from what the target's layers gave, its embeddings and its output layer.

Feature: a small recurrent network runs once per guess, at first on what the target's layers saw, then on its own
states; with attention it also looks back over the text. Blockwise: k blocks guess k tokens from one
look at the target (Stern et al. 2018), so a whole draft costs no sequential run at all. Both write logits for
the N most frequent tokens only: the output layer is most of a head's cost, and q = 0 elsewhere is still exact.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.drafters import head_fused
from outrider.drafters.base import ContextSession, Reach
from outrider.drafters.head_layers import Head, HeadConfig, Memory
from outrider.errors import BadOption, ModelCorrupt, ModelNotFound, require
from outrider.noise import Noise
from outrider.packing import pack, packed, product
from outrider.sampling import Sampling, draw, standardise
from outrider.types import Draft, DraftSession, Session, Shape, Source

CONFIG = "outrider_draft.json"


class HeadDrafter:
    """A trained head as a drafter. ``tokens`` [N] are the tokens it can draft.

    It stops where, by its own confidence, its guesses so far are all right with a chance below ``floor``.
    """

    cost = 0.05  # target runs a guess takes, about

    def __init__(self, head: Head, tokens: Tensor, name: str = "head", floor: float = 0.1) -> None:
        self.head, self.tokens, self.name = head.eval().requires_grad_(False), tokens, name
        require(0 <= floor < 1, f"floor must be a chance below 1 (0: never stop early), got {floor!r}")
        self.floor = floor

    @property
    def gamma(self) -> int:
        return self.head.config.gamma

    @property
    def plans(self) -> bool:
        return self.floor > 0 and self.head.config.kind == "feature"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        size = None if target.hidden is None else target.hidden.shape[-1]
        if size != self.head.config.hidden_size or target.unembedding is None:
            raise BadOption(
                f"draft {self.name!r} reads hidden states of size {self.head.config.hidden_size}, "
                f"the target shows {size or 'none'}; use the draft with the target it was trained for"
            )
        kind = _BlockwiseSession if self.head.config.kind == "blockwise" else _FeatureSession
        return kind(self, rows, shape, target)

    def save(self, folder: Path) -> None:
        weights = {f"head.{k}": v.to(torch.bfloat16).contiguous() for k, v in self.head.state_dict().items()}
        save_file({**weights, "tokens": self.tokens.to(torch.int32)}, str(folder / "model.safetensors"))
        (folder / CONFIG).write_text(json.dumps(asdict(self.head.config), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path, name: str | None = None) -> HeadDrafter:
        require((folder / CONFIG).is_file(), f"no trained draft in {folder}: {CONFIG} is missing", ModelNotFound)
        try:
            config = _parse(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
            weights = load_file(str(folder / "model.safetensors"))
            head = Head(config)
            head.load_state_dict({k[5:]: v.float() for k, v in weights.items() if k.startswith("head.")})
        except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelCorrupt(f"the trained draft in {folder} cannot be read ({reason}); train it again") from error
        return HeadDrafter(head, weights["tokens"].to(torch.int64), name or folder.name)


def _parse(settings: dict[str, Any]) -> HeadConfig:
    known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    return HeadConfig(**known)


class _HeadSession(ContextSession):
    """Drafting with a head: subclasses say which states stand behind the guesses."""

    recordable = True

    def __init__(self, drafter: HeadDrafter, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        assert target.embedding is not None and target.unembedding is not None
        self.target = target
        self.floor = drafter.floor if drafter.plans else 0.0
        # A copy: the drafter is shared, and another session may run in another dtype.
        self.head = deepcopy(drafter.head).to(device=target.device, dtype=target.unembedding.dtype)
        head_fused.fuse(self.head, target.device)
        self.tokens = drafter.tokens.to(target.device)  # [N]
        self.embedding = target.embedding
        self.output = target.unembedding[self.tokens]  # [N, size]
        if target.device.type == "cpu" and self.output.dtype == torch.float32:
            pack(self.head, rows=1)
            self.output = packed(self.output, rows=1)

    def begin(self, gamma: int) -> int:
        """Before the first guess; -> how many guesses there can be."""
        raise NotImplementedError

    def state(self, k: int, last: Tensor) -> Tensor:
        """The state behind guess k (from 0), drawn after token ``last`` [B] -> [B, size]."""
        raise NotImplementedError

    @torch.no_grad()
    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        rows = self.context.rows
        if gamma == 0:
            return Draft.empty(rows, self.device)
        gamma = self.begin(gamma)
        if gamma == 0:  # a fork that has used up what one look at the target gave
            return Draft.empty(rows, self.device)
        last = self.context.read(self.context.lengths - 1, 1)[:, 0]
        tokens, probs, proposed = at.new_zeros((rows, 0)), [], []
        reach = Reach(self.floor, self.context.active)
        for k in range(gamma):
            logits = product(self.state(k, last), self.output, None)  # [B, N]
            last, q = self._draw(logits, sampling, noise, tokens, at[:, k : k + 1])
            tokens = torch.cat([tokens, last[:, None]], 1)
            probs.append(q)
            proposed.append(reach.going)
            reach.took(q, logits, sampling)
            if reach.over:
                break
        dense = None if probs[0] is None else torch.stack([q for q in probs if q is not None], 1)
        return Draft(tokens, dense, torch.stack(proposed, 1))

    @property
    def device(self) -> torch.device:
        return self.context.device

    def _draw(
        self, logits: Tensor, sampling: Sampling, noise: Noise, guesses: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """A token and the distribution it came from; at temperature 0 a point mass needs no table."""
        plain = not (sampling.penalised or sampling.logit_bias or sampling.processors)
        if plain and sampling.greedy:
            return self.tokens[logits.argmax(-1)], None
        full = torch.full((logits.shape[0], self.vocab_size), -torch.inf, device=self.device)
        full[:, self.tokens] = logits.to(torch.float32)
        q = standardise(full[:, None], sampling, self.context.ahead(guesses), guesses[:, :0])[:, 0]
        return draw(q, noise.race("token", at, q.shape[-1])[:, 0]), q


class _BlockwiseSession(_HeadSession):
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


class _FeatureSession(_HeadSession):
    """Guess after guess, each on the state behind the one before.

    The target keeps its states by position, as it keeps its keys and values. So does the head its own keys: at each
    commit, whether it drafts or not, it makes those of the newest W tokens again, whose states have come true since.
    Rollback is nothing here either, and every shape stays constant.

    A fork is told tokens that the target has not run: there the head's own states stand for the target's.
    """

    supposed: Tensor | None = None  # of a fork: [B, 1, size], what it reads behind the newest token

    def __init__(self, drafter: HeadDrafter, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(drafter, rows, shape, target)
        target.keep_states(self.head.config.layers)
        self.width = shape.width
        self.slots = torch.arange(shape.capacity, device=target.device)  # [C]
        self.memory: Memory | None = None
        if self.head.attention is not None:
            depth, shared = self.head.attention.depth, self.head.attention.shared
            kept = torch.zeros((2, rows, shared, shape.capacity, depth), dtype=self.embedding.dtype, device=self.device)
            self.keys, self.values = kept

    @torch.no_grad()
    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        super().admit(row, prompt, source)
        if self.head.attention is not None:
            self.keys[row], self.values[row] = 0, 0
            if len(prompt) > 1:
                self._remember(torch.tensor([row], device=self.device), self.slots[None, : len(prompt) - 1])

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        if self.supposed is None:
            super().commit(tokens, count)
            self._remember_newest()
            return
        for k in range(tokens.shape[1]):
            self._suppose(self.supposed, tokens[:, k : k + 1], k < count)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.supposed = None if self.supposed is None else self.supposed.index_select(0, rows)
        if self.head.attention is not None:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    @torch.no_grad()
    def fork(self, rows: Tensor) -> Self:
        self.begin(1)  # reads the newest states: the fork cannot
        other = super().fork(rows)
        other.supposed = self.x.index_select(0, rows)
        return other

    def begin(self, gamma: int) -> int:
        place = self._newest()
        self.x = self._remember(self.rows, place[:, None]) if self.supposed is None else self.supposed  # [B, 1, size]
        self.place = place[:, None]
        if self.head.attention is not None:
            visible = (self.slots <= self.place) & (self.slots > self.place - self.head.config.window)  # [B, C]
            self.memory = Memory(self.keys, self.values, visible[:, None, None, None])
        return gamma

    def state(self, k: int, last: Tensor) -> Tensor:
        if k > 0:
            self.x = self.head.read(self.x, self.embedding[last][:, None])
            self.place = self.place + 1
            if self.memory is not None and self.head.attention is not None:
                self.memory.own.append(self.head.attention.remember(self.x, self.place))
        self.x = self.head.think(self.x, self.place, self.memory)
        return self.x[:, 0]

    def _newest(self) -> Tensor:
        """[B]: the newest token whose state is known, or supposed."""
        return (self.context.lengths - 2).clamp(min=0)

    @property
    def rows(self) -> Tensor:
        return torch.arange(self.context.rows, device=self.device)

    @torch.no_grad()
    def _remember_newest(self) -> None:
        """No more than W tokens are committed at a time, so no key stays unmade."""
        if self.head.attention is not None:
            start = (self._newest() + 1 - self.width).clamp(min=0)
            self._remember(self.rows, start[:, None] + torch.arange(self.width, device=self.device))

    @torch.no_grad()
    def _suppose(self, before: Tensor, token: Tensor, real: Tensor) -> None:
        """Another token [B, 1] behind rows where real [B]: what the head would read there, and its keys."""
        self.begin(1)
        read = self.head.read(self.state(0, token)[:, None], self.embedding[token])
        self.supposed = torch.where(real[:, None, None], read, before)  # [B, 1, size]
        super().commit(token, real.to(torch.int64))
        if self.head.attention is not None:
            rows, place = self.rows, self._newest()
            keys, values = self.head.attention.remember(self.supposed, place[:, None])
            self.keys[rows, :, place], self.values[rows, :, place] = keys[:, :, 0], values[:, :, 0]

    def _remember(self, rows: Tensor, positions: Tensor) -> Tensor:
        """What the head reads at positions [R, T] of these rows -> [R, T, size]; its keys are kept."""
        states = self.target.states
        assert states is not None
        tokens = self.context.tokens[rows[:, None], positions + 1]
        x = self.head.read(self.head.seen(states[rows[:, None], positions]), self.embedding[tokens])
        if self.head.attention is not None:
            keys, values = self.head.attention.remember(x, positions)
            self.keys[rows[:, None], :, positions] = keys.transpose(1, 2)
            self.values[rows[:, None], :, positions] = values.transpose(1, 2)
        return x
