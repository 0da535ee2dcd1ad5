"""The tokens of a batch of rows on the device: what is committed, and the guesses just beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from outrider.core import host_sync

_FEW_ROWS = 32
"""Rows that are written one by one where the host may: more are quicker together."""


class Context:
    """Committed tokens per row, in a buffer of fixed capacity.

    Positions from ``lengths`` on are scratch: guesses being scored stand there until something is committed
    over them. An empty slot holds one token 0 so that every shape is valid.
    """

    def __init__(self, rows: int, capacity: int, device: torch.device) -> None:
        self.tokens = torch.zeros((rows, capacity), dtype=torch.int64, device=device)  # [B, C]
        self.lengths = torch.ones(rows, dtype=torch.int64, device=device)  # [B]
        self.prompt_lengths = torch.ones(rows, dtype=torch.int64, device=device)  # [B]
        self.active = torch.zeros(rows, dtype=torch.bool, device=device)  # [B]

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def capacity(self) -> int:
        return self.tokens.shape[1]

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def admit(self, row: int, prompt: Sequence[int]) -> None:
        self.admit_all([row], [prompt])

    def admit_all(self, rows: Sequence[int], prompts: Sequence[Sequence[int]], active: bool = True) -> None:
        """New sequences in these rows: a copy to the device for all of them, not several for each."""
        tokens = torch.zeros((len(rows), self.capacity), dtype=torch.int64)
        for line, prompt in zip(tokens, prompts, strict=True):
            line[: len(prompt)] = torch.tensor(prompt, dtype=torch.int64)
        index = torch.tensor(rows, dtype=torch.int64).to(self.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts]).to(self.device)
        self.tokens[index] = tokens.to(self.device)
        self.lengths[index], self.prompt_lengths[index] = lengths, lengths
        self.active[index] = active

    def release(self, row: int) -> None:
        self.active[row] = False

    def positions(self, count: int, offset: int = 0) -> Tensor:
        """Absolute positions of the next ``count`` tokens -> [B, count]."""
        if host_sync.free(self.device):
            return torch.from_numpy(self.lengths.numpy()[:, None] + np.arange(offset, offset + count))
        return self.lengths[:, None] + torch.arange(offset, offset + count, device=self.device)

    def write_scratch(self, tokens: Tensor, offset: int = 0) -> None:
        """Put guesses [B, K] behind the committed tokens without committing them."""
        count = tokens.shape[1]
        if count == 0:
            return
        if self.rows <= _FEW_ROWS and host_sync.free(self.device):
            held, new = self.tokens.numpy(), tokens.numpy()
            for row, length in enumerate(self.lengths.tolist()):
                held[row, length + offset : length + offset + count] = new[row]
            return
        self.tokens.scatter_(1, self.positions(tokens.shape[1], offset), tokens)

    def read(self, start: Tensor, count: int) -> Tensor:
        """``count`` tokens of each row from position start [B] on -> [B, count]."""
        return self.tokens.gather(1, start[:, None] + torch.arange(count, device=self.device))

    def ahead(self, guesses: Tensor) -> Context:
        """The context as it would be if guesses [B, K] were true: what penalties and processors must see."""
        view = copy(self)
        if guesses.shape[1]:
            view.write_scratch(guesses)
            view.lengths = self.lengths + guesses.shape[1]
        return view

    def append(self, tokens: Tensor, count: Tensor) -> Tensor:
        """Commit the first count [B] of tokens [B, K]; idle rows take none. Returns what was really added."""
        self.write_scratch(tokens)  # the surplus beyond count is scratch, overwritten by the next guesses
        if host_sync.free(self.device):
            added = count.numpy() * self.active.numpy()
            lengths = self.lengths.numpy()
            lengths += added
            return torch.from_numpy(added)
        count = count * self.active
        self.lengths += count  # in place: a captured step finds its state where it left it
        return count

    def rewind(self, lengths: Tensor) -> None:
        """Tokens beyond lengths [B] are scratch again."""
        self.lengths.copy_(torch.minimum(self.lengths, lengths))

    def select(self, rows: Tensor) -> None:
        for name in ("tokens", "lengths", "prompt_lengths", "active"):
            setattr(self, name, getattr(self, name).index_select(0, rows))

    def of_rows(self, rows: Tensor) -> Context:
        """A context of its own with copies of these rows."""
        other = copy(self)
        other.select(rows)
        return other
