"""The session of every engine: rows with a KV cache of fixed capacity, states of layers on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import Admission, Choose, Shape, Source
from outrider.errors import BadOption, require
from outrider.models.engine_protocol import Engine, GreedyEngine, Pending, Wanted
from outrider.models.late_states import LateStates
from outrider.models.lazy_zeros import zeros
from outrider.models.prefill import PrefillRun, neighbours, side_by_side
from outrider.models.session import BufferedSession
from outrider.models.shared_prefixes import repeated_prompts, shared_prefixes


class Runnable(Protocol):
    """What a session needs of a model."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def embedding(self) -> EmbeddingTable: ...

    @property
    def unembedding(self) -> EmbeddingTable: ...


class CachedSession(BufferedSession):
    """Rows of a model with a KV cache. Runs have constant width; on batch-invariant models only what they need."""

    def __init__(self, model: Runnable, rows: int, shape: Shape) -> None:
        facts = model.facts
        super().__init__(
            rows, replace(shape, fixed=shape.fixed and not facts.batch_invariant), facts.vocab_size, facts.device
        )
        self.model, self.engine = model, model.engine
        self.cache = self.engine.allocate(rows, shape)
        if facts.hidden_size is not None:
            self.embedding, self.unembedding = model.embedding, model.unembedding
            self.hidden = torch.zeros((rows, facts.hidden_size), dtype=facts.dtype, device=facts.device)
        self._written = 0  # tokens of the longest prompt so far; 0: nothing was ever run
        self.share_prefixes = False  # see ``SharesPrefixes``
        self.reused = 0  # tokens of prompts that were copied; some at the end of them run again (``side_by_side``)
        self._starts: dict[int, int] = {}  # of rows that are prefilled now: tokens copied
        self._kept: tuple[int, ...] = ()  # layers whose output ``states`` holds
        self._late, self._unread = False, dict[int, Source]()  # sources that are to be encoded before the next run

    @property
    def states(self) -> Tensor | None:
        """[B, C, L, size], by position, once somebody asked for them."""
        if self._states is not None and self._late_states.waiting:
            self._late_states.write(self._states)
        return self._states

    @states.setter
    def states(self, states: Tensor | None) -> None:
        self._states, self._late_states = states, LateStates()  # a fork's are its own

    def keep_states(self, layers: Sequence[int]) -> None:
        facts = self.model.facts
        known = facts.layers or 0
        wrong = [layer for layer in layers if not -1 <= layer <= known]
        require(not wrong, f"layers {wrong} do not exist: the model has {known}")
        if self.states is not None and self._kept != tuple(layers):
            raise BadOption(f"states of layers {self._kept} are kept for another draft, not those of {tuple(layers)}")
        if facts.hidden_size is None or (facts.encoder_decoder and known in layers):
            raise BadOption("this model does not show these states of its layers; use a draft that reads none")
        self._kept = tuple(layers)
        shape = (self.context.rows, self.shape.capacity, len(self._kept), facts.hidden_size)
        self.states = zeros(shape, facts.dtype, facts.device)

    def prefill_in_parts(self, admissions: Sequence[Admission], steps: bool = True) -> Iterator[None]:
        repeated = repeated_prompts(admissions)
        copies = {row for rows in repeated.values() for row in rows}
        run = [new for new in admissions if new.row not in copies]
        complete = False
        try:
            self._starts = self._copy_prefixes(run) if self._may_share else {}
            if self._written:
                self._clear(sorted({new.row for new in run} - set(self._starts)))
            self._written = max(self._written, *(len(new.prompt) for new in admissions))
            yield from super().prefill_in_parts(run, steps)
            for source, rows in repeated.items():
                self._copy_prompt(source, rows)
            complete = True
        finally:
            if not complete:  # nothing that was not run may be copied
                for new in admissions:
                    self.forget(new.row)

    def _copy_prompt(self, source: int, rows: list[int]) -> None:
        """Start rows with the prompt that was just run in row ``source``. A prompt has the same bits in every row."""
        length = int(self.context.lengths[source])
        self.context.admit_all(rows, [self.context.tokens[source, :length].tolist()] * len(rows))
        self._clear(sorted(rows))
        to = torch.tensor(rows, device=self.device)
        self.cache.move(to, torch.full_like(to, source), length - 1)
        self.cached[to] = length - 1
        if self.hidden is not None:
            self.hidden[to] = self.hidden[source].clone()  # indexed by a number it is a view of what is written to
        if self.states is not None:
            self.states[to, : length - 1] = self.states[source, : length - 1].clone()

    def forget(self, row: int) -> None:
        """Make the row an empty slot: nothing of what it holds is copied."""
        self._written = max(self._written, int(self.context.lengths[row]) + 2 * self.shape.width)
        self.context.release(row)
        self.context.lengths[row], self.cached[row] = 1, 0

    @property
    def _may_share(self) -> bool:
        return self.share_prefixes and self.model.facts.batch_invariant and self.engine.trims_prefill

    def _copy_prefixes(self, admissions: Sequence[Admission]) -> dict[int, int]:
        """Copy what some slot holds of the prompts already -> tokens that need not be run, by row."""
        context = self.context
        prompts = {new.row: list(new.prompt) for new in admissions if new.source is None}
        texts = context.tokens[:, : int(context.lengths.max())].tolist()
        found = shared_prefixes(prompts, texts, self.cached.tolist())
        if not found:
            return {}
        to, source = torch.tensor(list(found)), torch.tensor([slot for slot, _ in found.values()])
        longest = max(length for _, length in found.values())
        self.cache.move(to, source, longest)
        if self.states is not None:
            self.states[to, :longest] = self.states[source, :longest]
        for row, (_, length) in found.items():
            self._clear([row], length)
        self.reused += sum(length for _, length in found.values())
        return {row: length for row, (_, length) in found.items()}

    def _clear(self, rows: list[int], start: int = 0) -> None:
        """Zero what rows before have left: it is masked, but a NaN passes through any mask."""
        # As far as any row may have written, guesses and prefill chunks included: the rest was never touched.
        end = max(int(self.context.lengths.max()) + 2 * self.shape.width, self._written) + self.shape.chunk
        for part in neighbours(rows):
            self.cache.clear_rows(part, range(start, end))
            if self.states is not None:
                # A prompt of one token has nothing behind it, least of all another's.
                self.states[part.start : part.stop, start:end] = 0

    def _clear_behind(self, rows: Tensor, positions: Tensor) -> None:
        super()._clear_behind(rows, positions)
        self.cache.clear(rows, positions)
        if self.states is not None:
            self.states[rows, positions] = 0

    def read_late(self) -> None:
        """Encode sources when they are first needed: whoever is never asked for a guess encodes none."""
        self._late = self.model.facts.encoder_decoder

    def _encode(self, sources: Mapping[int, Source]) -> None:
        if self._late:
            self._unread = {**self._unread, **sources}  # another dict: a fork may share this one
        else:
            self.engine.encode(sources, self.cache)

    def _read_sources(self) -> None:
        if self._unread:
            sources, self._unread = self._unread, {}
            self.engine.encode(sources, self.cache)

    def release(self, row: int) -> None:
        super().release(row)
        if not self.shape.fixed and self.device.type == "cpu":
            # It does not run any more (``_wanted``): what is pending never will, and must not pass for cached.
            self._written = max(self._written, int(self.context.lengths[row]) + 2 * self.shape.width)
            self.context.lengths[row] = self.cached[row] + 1
        self._unread = {other: source for other, source in self._unread.items() if other != row}

    def _copy_memory(self, rows: Tensor) -> None:
        self._read_sources()
        self.cache = self.cache.select(rows)

    def _move_memory(self, rows: Tensor) -> bool:
        self._read_sources()
        if rows.device.type != "cpu" or len(rows) != self.context.rows:  # on a GPU, finding which rows move would sync
            self._copy_memory(rows)
            return False
        moved = (rows != torch.arange(len(rows))).nonzero()[:, 0]
        length, start = int(self.context.lengths.max()) + self.guessed, self._held(moved, rows[moved])
        self.cache.reorder(rows, length, start)
        if self.states is not None and not self.model.facts.encoder_decoder:  # there another source may be behind them
            self.states[moved, start:length] = self.states[rows[moved], start:length]
            return True
        return False

    def _held(self, to: Tensor, source: Tensor) -> int:
        """How many leading tokens rows ``to`` have in common with rows ``source``, with their keys and values cached.

        Hypotheses of a beam search differ in their last tokens: what they share need not be copied. Only where the
        bits of a token do not depend on the run it was in.
        """
        if not self.model.facts.batch_invariant or not len(to):
            return 0
        most = int(torch.minimum(self.cached[to], self.cached[source]).min())
        same = (self.context.tokens[to, :most] == self.context.tokens[source, :most]).all(0)
        return int(same.to(torch.int64).cumprod(0).sum())

    @torch.no_grad()
    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        self._read_sources()
        found = self.engine.run(tokens, positions, self.cache, self._wanted(tokens.shape[1]))
        self._keep(range(len(tokens)), positions, found.states)
        assert found.logits is not None
        return found.logits, found.hidden

    def _prefill_runs(self, lengths: Mapping[int, int]) -> Iterator[PrefillRun]:
        if not self.engine.trims_prefill or self.shape.fixed:
            yield from super()._prefill_runs(lengths)
            return
        yield from side_by_side(lengths, self.engine.prefill_tokens, self._starts)

    @torch.no_grad()
    def _prefill(self, rows: range, tokens: Tensor, positions: Tensor, last: Sequence[int]) -> Tensor | None:
        self._read_sources()
        alone = len(rows) == 1
        wanted = Wanted(range(last[0], last[0] + 1) if alone else None, logits=False, states=self._kept)
        found = self.engine.run(tokens, positions, self.cache.part(rows), wanted)
        self._keep(rows, positions, found.states)
        if found.hidden is None or alone:
            return None if found.hidden is None else found.hidden[:, 0]
        place = torch.tensor(last).to(tokens.device)[:, None, None].expand(-1, 1, found.hidden.shape[2])
        return found.hidden.gather(1, place)[:, 0]

    def _wanted(self, width: int) -> Wanted:
        """What a run of all rows is for: rows that have ended need not go through the model."""
        if self.shape.fixed or self.device.type != "cpu":  # constant shapes; and elsewhere asking would sync
            return Wanted(states=self._kept)
        rows = np.flatnonzero(self.context.active.numpy())
        some = 0 < len(rows) < self.context.rows
        return Wanted(states=self._kept, rows=torch.from_numpy(rows) if some else None)

    @torch.no_grad()
    def guess(self, count: int, choosable: int) -> Tensor | None:
        """The likeliest tokens behind what is committed, one after another [B, count], as ``score`` and ``extend`` find
        them; None where the engine does not write by itself. ``choosable``: tokens that may be guessed, the first ones.
        """
        if self.shape.fixed or self._greedy is None:
            return None
        self._read_sources()
        rows, guesses = np.flatnonzero(self.context.active.numpy()), np.zeros((self.context.rows, count), np.int64)
        if len(rows):
            most = min(choosable, self.vocab_size)
            guesses[rows] = self._greedy.run_greedily(self._pending(rows), self.cache, count, most)
        return self._guessed(guesses)

    @torch.no_grad()
    def guess_chosen(self, count: int, choose: Choose) -> Tensor | None:
        """The same with tokens that ``choose`` takes; None also where some row is not in use."""
        if self.shape.fixed or self._greedy is None or not self.context.active.numpy().all():
            return None
        self._read_sources()
        pending = self._pending(np.arange(self.context.rows))
        return self._guessed(self._greedy.run_chosen(pending, self.cache, count, choose))

    def _pending(self, rows: NDArray[Any]) -> Pending:
        cached = self.cached.numpy()
        starts, counts = cached[rows], (self.context.lengths.numpy() - cached)[rows]
        firsts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=firsts[1:])
        positions = np.repeat(starts - firsts[:-1], counts) + np.arange(firsts[-1])
        return Pending(rows, firsts, self.context.tokens.numpy()[np.repeat(rows, counts), positions], positions)

    def _guessed(self, guesses: NDArray[Any]) -> Tensor:
        """All but the last of these [B, G] were run."""
        found = torch.from_numpy(guesses)
        self.context.write_scratch(found[:, :-1])
        self.guessed, self._scored, self._window = guesses.shape[1] - 1, True, None
        return found

    @cached_property
    def _greedy(self) -> GreedyEngine | None:
        """The engine, where it writes by itself on this device."""
        return self.engine if isinstance(self.engine, GreedyEngine) else None

    def _keep(self, rows: range, positions: Tensor, given: Tensor | None) -> None:
        """What the layers gave belongs to these rows and positions."""
        if self._states is None or given is None:
            return
        if self._states.device.type == "cpu" and self._states.dtype == torch.float32:
            self._late_states.add(self._states, rows, positions, given.float())
        else:
            on_device = torch.arange(rows.start, rows.stop, device=positions.device)[:, None]
            self._states[on_device, positions] = given
