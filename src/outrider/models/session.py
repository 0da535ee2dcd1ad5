"""The bookkeeping every session shares: what is committed, what is cached, what must be run next.

A model behind it only has to answer ``_feed``: run these tokens at these positions. Rollback, the off-by-one
after full acceptance and constant shapes are decided here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.context import Context
from outrider.core.embedding_table import EmbeddingTable
from outrider.core.protocols import Admission, Shape, Source
from outrider.errors import BadOption
from outrider.models.prefill import PrefillRun, row_by_row


def no_source() -> BadOption:
    """What a decoder-only model says to a source."""
    return BadOption("source is for encoder-decoder models only; this model continues its prompt")


class BufferedSession(ABC):
    """Rows on a model with position-addressed memory.

    ``cached`` [B] counts the leading tokens whose keys and values are in memory and true. At least one token
    is always pending, because running it is what gives the next logits. ``behind`` bounds the pending tokens
    of any row, known on the host, so that no step has to ask the device. A step changes tensors in place and
    chooses shapes by ``behind`` and its arguments alone: that is what lets ``graphs.py`` record it.
    """

    def __init__(self, rows: int, shape: Shape, vocab_size: int, device: torch.device) -> None:
        self.context = Context(rows, shape.capacity, device)
        self.shape = shape
        self.vocab_size = vocab_size
        self.cached = torch.zeros(rows, dtype=torch.int64, device=device)  # [B]
        self.behind = 1
        self._scored = False  # something was run since the last commit
        self.embedding: EmbeddingTable | None = None
        self.unembedding: EmbeddingTable | None = None
        self.hidden: Tensor | None = None  # [B, size]: what gave each row's last token
        self.states: Tensor | None = None  # [B, C, L, size], by position, once somebody asked for them
        self._window: tuple[Tensor, Tensor] | None = None  # start [B] and hidden states [B, w, size] of the last run
        self.guessed = 0  # guesses run since the last commit; they stand as scratch in the context

    @abstractmethod
    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run tokens [B, w] at positions [B, w], remembering them -> logits [B, w, V], hidden [B, w, size]."""

    @abstractmethod
    def _prefill(self, rows: range, tokens: Tensor, positions: Tensor, last: Sequence[int]) -> Tensor | None:
        """Run tokens [n, w] of some rows, remembering them -> hidden [n, size] of token ``last[i]`` of each."""

    def _prefill_runs(self, lengths: Mapping[int, int]) -> Iterator[PrefillRun]:
        """How prompts are run, by row: one after another in chunks of constant size."""
        return row_by_row(lengths, self.shape.chunk)

    def _encode(self, sources: Mapping[int, Source]) -> None:
        raise no_source()

    def _clear_behind(self, rows: Tensor, positions: Tensor) -> None:
        """Forget what is at positions [n, k] of rows [n, 1]: it is masked, but a NaN passes through any mask."""
        self.context.tokens[rows, positions] *= positions < self.context.lengths[rows]

    def keep_states(self, layers: Sequence[int]) -> None:
        raise BadOption("this model shows no states of its layers; use a draft that reads none")

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.admit_all([Admission(row, prompt, source)])

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        """Start sequences; all but the last token of each is run now."""
        for _ in self.prefill_in_parts(admissions, steps=False):
            pass

    def prefill_in_parts(self, admissions: Sequence[Admission], steps: bool = True) -> Iterator[None]:
        """``admit_all``, one run of prompts at a time: chunked prefill.

        Between two of them other rows may take ``steps``. The new rows are empty slots until the end: what steps write
        there lies behind the prompts.
        """
        rows = [new.row for new in admissions]
        self.context.admit_all(rows, [new.prompt for new in admissions], active=False)
        sources = {new.row: new.source for new in admissions if new.source is not None}
        if sources:
            self._encode(sources)
        index = torch.tensor(rows).to(self.device)
        lengths = {new.row: len(new.prompt) - 1 for new in admissions}
        self.cached[index] = torch.tensor(list(lengths.values())).to(self.device)
        behind = self.cached[index][:, None] + torch.arange(2 * self.shape.width, device=self.device)
        behind = behind.clamp(max=self.shape.capacity - 1)
        last: dict[int, Tensor] = {}  # states behind the prompts; steps in between write over those of all rows
        for run in self._prefill_runs(lengths):
            self._run_prompts(run, lengths)
            if self.hidden is not None:
                ended = (row for row in run.rows if run.positions.start < lengths[row] <= run.positions.stop)
                last |= {row: self.hidden[row].clone() for row in ended}
            yield
            if steps:
                self._clear_behind(index[:, None], behind)
        if self.hidden is not None:  # a prompt of one token has none behind it, least of all another request's
            nothing = torch.zeros_like(self.hidden[0])
            self.hidden[index] = torch.stack([last.get(row, nothing) for row in rows])
        self.context.active[index] = True

    def _run_prompts(self, run: PrefillRun, lengths: Mapping[int, int]) -> None:
        start, count = run.positions.start, len(run.positions)
        positions = torch.arange(start, run.positions.stop, device=self.device).expand(len(run.rows), -1)
        tokens = self.context.tokens[run.rows.start : run.rows.stop, start : run.positions.stop]
        last = [min(count, lengths[row] - start) - 1 for row in run.rows]  # of the prompt; the rest is padding
        hidden = self._prefill(run.rows, tokens, positions, last)
        if self.hidden is not None and hidden is not None:
            self.hidden[run.rows.start : run.rows.stop] = hidden

    @property
    def device(self) -> torch.device:
        return self.context.device

    def release(self, row: int) -> None:
        self.context.release(row)

    def score(self, tail: Tensor) -> Tensor:
        guesses = tail.shape[1]
        self._catch_up(guesses)
        self.context.write_scratch(tail)
        width = self.shape.width if self.shape.fixed else self.behind + guesses
        logits = self._run(self.cached, width)
        self.guessed = guesses
        if self.behind == 1:
            return logits[:, : guesses + 1]
        # Rows differ in what was pending: take the logits from the last committed token on.
        first = self.context.lengths - 1 - self.cached
        index = first[:, None] + torch.arange(guesses + 1, device=first.device)
        return logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))

    def extend(self, tokens: Tensor) -> Tensor:
        self.context.write_scratch(tokens, offset=self.guessed)
        logits = self._run(self.context.lengths + self.guessed, tokens.shape[1])
        self.guessed += tokens.shape[1]
        return logits

    def commit(self, tokens: Tensor, count: Tensor, follows: bool = True) -> None:
        width = tokens.shape[1]
        known = self._agreed(tokens, count)
        ran = self.guessed if self._scored else -1  # -1: nothing was run, all pending tokens still are
        self.context.append(tokens, count)
        if ran >= 0:
            if host_sync.free(self.device):
                np.minimum(known.numpy(), self.context.lengths.numpy() - 1, out=self.cached.numpy())
            else:
                self.cached.copy_(torch.minimum(known, self.context.lengths - 1))
            self._keep_hidden()
        if not follows:
            self.behind = int((self.context.lengths - self.cached).max())
        elif ran >= 0:
            self.behind = max(1, width - ran)
        else:
            self.behind += width
        self.guessed, self._scored = 0, False

    def _agreed(self, tokens: Tensor, count: Tensor) -> Tensor:
        """[B]: the leading tokens of each row that need not be run again, if these are committed."""
        lengths = self.context.lengths
        if self.guessed == 0:
            return lengths.clone()
        if host_sync.free(self.device):
            return self._agreed_on_host(tokens.tolist(), count.tolist())
        # A guess that stands where a committed token goes, and equals it.
        same = self.context.read(lengths, tokens.shape[1]) == tokens
        place = torch.arange(tokens.shape[1], device=tokens.device)
        same &= (place < count[:, None]) & (place < self.guessed)
        return lengths + same.to(torch.int64).cumprod(-1).sum(-1)

    def _agreed_on_host(self, tokens: list[list[int]], count: list[int]) -> Tensor:
        agreed = self.context.lengths.tolist()
        held = self.context.tokens.numpy()
        for row, committed in enumerate(tokens):
            length, most = agreed[row], min(count[row], self.guessed)
            guesses = held[row, length : length + most].tolist()
            while agreed[row] - length < most and guesses[agreed[row] - length] == committed[agreed[row] - length]:
                agreed[row] += 1
        return torch.from_numpy(np.array(agreed))

    def fork(self, rows: Tensor) -> Self:
        """A session of its own whose row i is a copy of row rows[i] here; what it runs and commits stays there."""
        other = copy(self)
        other.context = copy(self.context)
        other._select(rows)
        other._copy_memory(rows)
        return other

    def rewind(self, lengths: Tensor) -> None:
        # Memory is addressed by position: what lies beyond is hidden by the mask and overwritten in time.
        self.context.rewind(lengths)
        self.cached.copy_(torch.minimum(self.cached, self.context.lengths - 1))
        self.forget_guesses()
        self._keep_hidden()

    def forget_guesses(self) -> None:
        """Whatever was scored since the last commit is scratch."""
        self.guessed, self._scored = 0, False

    def select(self, rows: Tensor) -> None:
        if rows.device.type == "cpu" and rows.tolist() == list(range(self.context.rows)):
            return  # every row stays where it is
        self._select(rows, states=not self._move_memory(rows))

    def _move_memory(self, rows: Tensor) -> bool:
        """Make row i of the model's memory the old row rows[i]; ``context`` is still as it was.

        -> Whether ``states`` were moved with it.
        """
        self._copy_memory(rows)
        return False

    @abstractmethod
    def _copy_memory(self, rows: Tensor) -> None:
        """Give this session, fresh from a fork, a memory of its own, with the rows of the shared one."""

    def _select(self, rows: Tensor, states: bool = True) -> None:
        self.context.select(rows)
        self.cached = self.cached.index_select(0, rows)
        self.hidden = None if self.hidden is None else self.hidden.index_select(0, rows)
        if states and self.states is not None:
            self.states = self.states.index_select(0, rows)
        if self._window is not None:
            self._window = self._window[0].index_select(0, rows), self._window[1].index_select(0, rows)

    def _run(self, start: Tensor, width: int) -> Tensor:
        self._scored = True
        if host_sync.free(self.device):
            places = start.numpy()[:, None] + np.arange(width)
            tokens = torch.from_numpy(self.context.tokens.numpy()[np.arange(len(places))[:, None], places])
            positions = torch.from_numpy(places)
        else:
            positions = start[:, None] + torch.arange(width, device=start.device)  # [B, w]
            tokens = self.context.tokens.gather(1, positions)
        logits, hidden = self._feed(tokens, positions)
        self._window = None if hidden is None else (positions[:, 0], hidden)
        return logits

    def _keep_hidden(self) -> None:
        """The state behind a row's last token is that of the token before it."""
        if self._window is not None:
            start, hidden = self._window
            if self.hidden is not None and host_sync.free(self.device):
                self._keep_hidden_on_host(self.hidden, start.tolist(), hidden)
                return
            index = self.context.lengths - 2 - start
            place = index.clamp(min=0, max=hidden.shape[1] - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
            last = hidden.gather(1, place)[:, 0]
            # Before the last run there is nothing to take: a state of a later token would tell what was taken back.
            last = torch.where((index >= 0)[:, None], last, 0)
            self.hidden = last if self.hidden is None else self.hidden.copy_(last)

    def _keep_hidden_on_host(self, kept: Tensor, start: list[int], hidden: Tensor) -> None:
        last = hidden.shape[1] - 1
        for row, length in enumerate(self.context.lengths.tolist()):
            index = length - 2 - start[row]
            if index < 0:
                kept[row].zero_()
            else:
                kept[row].copy_(hidden[row, min(index, last)])

    def _catch_up(self, guesses: int) -> None:
        """Run pending tokens, a width at a time, until the rest and the guesses fit into one run."""
        width = self.shape.width if self.shape.fixed else self.behind + guesses
        while self.behind > 1 and self.behind + guesses > width:
            self._run(self.cached, width)
            self.cached.copy_(torch.minimum(self.cached + width, self.context.lengths - 1))
            self.behind = max(1, self.behind - width)
