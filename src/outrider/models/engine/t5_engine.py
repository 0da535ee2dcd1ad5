"""T5-like encoder-decoder models compiled for this CPU by numba, on the memory of torch's tensors and of the file of
weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numba
import numpy as np
import torch
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import CPU, ModelFacts
from outrider.core.protocols import Choose, Shape, Source
from outrider.errors import PromptError, require
from outrider.kernels.numba import float16_products, race, t5, t5_records
from outrider.kernels.numba.code_cache import DIGEST, compiling
from outrider.kernels.numba.thread_team import ThreadTeam, zeros
from outrider.models.engine.prepared import Prepared
from outrider.models.engine.t5_mapped import T5Weights
from outrider.models.engine.t5_positions import biases
from outrider.models.engine.t5_sizes import T5Sizes
from outrider.models.engine_protocol import Pending, Result, Wanted
from outrider.models.kv_buffers import Buffers
from outrider.models.settings import setting
from outrider.models.source_buffers import SourceBuffers

Array = np.ndarray[Any, Any]

_ENCODED_TOGETHER = 256
"""Tokens of sources that are run together, about: more would not stay in a core's cache."""

_WORTH_THREADS = 2e6
"""Multiplications from which on it is worth to wake other threads for a run."""

_SLOTS, _MEMORY = 128, 2**30
"""Rows that run together, as far as so many bytes hold their KV caches."""


@dataclass(frozen=True)
class _Given:
    """What a run reads, of N tokens in R rows; see ``T5Run``."""

    tokens: Array
    firsts: Array
    rows: Array
    at: Array
    seen: Array
    own: t5_records.T5Memory
    cross: t5_records.T5Memory
    sources: Array
    holding: object  # what the addresses of both memories point into
    guesses: int = 0
    choosable: int = 0

    def check(self) -> None:
        """Compiled code reads and writes by address: nothing beyond the end of a buffer may reach it."""
        at, seen, rows, sources = (array.tolist() for array in (self.at, self.seen, self.rows, self.sources))
        inside(min(at), max(max(at) + max(0, self.guesses - 1), max(seen) - 1), self.own.capacity, "positions")
        inside(min(rows), max(rows), min(self.own.rows, self.cross.rows, len(sources)), "rows")
        inside(min(sources), max(sources), self.cross.capacity + 1, "tokens of a source")


def inside(low: int, high: int, end: int, what: str) -> None:
    """From 0 on and below the end."""
    if low < 0 or high >= end:
        raise IndexError(f"a run with {what} {low} to {high} does not fit into a KV cache for {end}")


class T5Engine:
    """Runs encoder and decoder by code that numba compiles, on memory-mapped weights. Threads may share it."""

    trims_prefill = True
    prefill_tokens = 128
    name = f"numba {numba.__version__}"
    kernels = DIGEST

    def __init__(self, prepared: Prepared, config: Any) -> None:
        self.prepared, self.sizes, self.threads = prepared, T5Sizes.of(config), torch.get_num_threads()
        self.max_length: int | None = setting(config, "max_position_embeddings")
        self._team, self._alone = ThreadTeam(self.threads), ThreadTeam(1)
        self._read = self.sizes.decoder_weights + self.sizes.hidden * self.sizes.vocabulary
        self._known: WeakKeyDictionary[Buffers, t5_records.T5Memory] = WeakKeyDictionary()
        self._weights = weights = T5Weights(prepared, self.sizes)
        if prepared.weights == "float16":
            assert float16_products.AVAILABLE, "backends.numba_computes_in_half and float16_products.py disagree"
            self.name += " in float16"
        if weights.by_amx:
            self.name += " with AMX"
        self.embedding: EmbeddingTable = weights.embedding
        self.unembedding: EmbeddingTable = weights.unembedding
        self.encoder, self.decoder = weights.stack("encoder"), weights.stack("decoder")
        self._cross_places = weights.addresses("decoder", ("cross_kv",))[:, 0].copy()
        self._cross_powers = weights.powers("decoder", ("cross_kv",))[:, 0].copy()
        self._growing, self._reach, self._biases = Lock(), 0, list[Array]()
        self._compile()

    def _compile(self) -> None:
        """Run one token on buffers of its own: what is compiled is kept on disk, where the next process finds it."""
        cache, one = self.allocate(1, Shape(16, 1, source_capacity=16)), torch.zeros((1, 1), dtype=torch.int64)
        with compiling("t5_layers", "encoder-decoder models", seconds=30):
            self.run(one, one, cache, Wanted())
        with compiling("t5_cross", "encoder-decoder models", seconds=10):
            self.encode({0: [0]}, cache)
        race.make_ready()

    @property
    def facts(self) -> ModelFacts:
        weights, sizes = self.prepared.weights, self.sizes
        each = 256 * 2 * 4 * sizes.decoder * sizes.heads * sizes.depth
        return ModelFacts(
            sizes.vocabulary,
            max_length=self.max_length,
            engine=f"{self.name}, {weights} weights",
            compute_dtype=torch.float16 if weights == "float16" else torch.float32,
            weight_format=weights,
            encoder_decoder=True,
            hidden_size=sizes.hidden,
            layers=sizes.decoder,
            slots=max(8, min(_SLOTS, _MEMORY // each)),
            weights_read=self._read,
        )

    def allocate(self, rows: int, shape: Shape) -> SourceBuffers:
        layers = [(self.sizes.heads, self.sizes.depth, self.sizes.depth)] * self.sizes.decoder
        own, cross = (
            Buffers.allocate(layers, rows, capacity, torch.float32, CPU)
            for capacity in (shape.capacity, shape.source_capacity)
        )
        return SourceBuffers.empty(own, cross, length=0)

    def run(self, tokens: Tensor, positions: Tensor, cache: SourceBuffers, wanted: Wanted) -> Result:
        every, last = len(tokens), self.sizes.decoder
        if wanted.rows is not None:
            tokens, positions = tokens[wanted.rows], positions[wanted.rows]
        rows, width = tokens.shape
        given = self._of_decoder(
            tokens.numpy(), np.arange(0, rows * width + 1, width),
            np.arange(rows) if wanted.rows is None else wanted.rows.numpy(), positions.numpy(), cache,
        )  # fmt: skip
        layers = [layer % (last + 1) for layer in wanted.states]
        run = self._run(self.decoder, given, sorted({*layers} - {last}), wanted.logits)

        def shaped(flat: Array) -> Tensor:
            found = torch.from_numpy(flat).view(rows, width, flat.shape[-1])
            if wanted.rows is None:
                return found
            return torch.zeros((every, *found.shape[1:])).index_copy_(0, wanted.rows, found)

        hidden, kept = shaped(run.found), None
        if layers:
            scale = self.sizes.hidden**0.5 if self.sizes.scaled else 1.0  # states are what comes before it
            inner = {layer: shaped(run.states[place]) for layer, place in enumerate(run.kept) if place >= 0}
            kept = torch.stack([inner[layer] if layer in inner else hidden * scale for layer in layers], 2)
        part = slice(None) if wanted.tokens is None else slice(wanted.tokens.start, wanted.tokens.stop)
        return Result(shaped(run.logits)[:, part] if wanted.logits else None, hidden[:, part], kept)

    def run_greedily(self, pending: Pending, cache: SourceBuffers, guesses: int, choosable: int) -> Array:
        given = self._of_decoder(
            pending.tokens, pending.firsts, pending.rows, pending.positions, cache, guesses, choosable
        )  # fmt: skip
        return self._run(self.decoder, given, (), logits=True).guesses.T

    def run_chosen(self, pending: Pending, cache: SourceBuffers, guesses: int, choose: Choose) -> Array:
        tokens, firsts, at, rows = pending.tokens, pending.firsts, pending.positions, pending.rows
        found, each = np.empty((len(rows), guesses), np.int64), np.arange(len(rows) + 1)
        for guess in range(guesses):
            run = self._run(self.decoder, self._of_decoder(tokens, firsts, rows, at, cache), (), logits=True)
            last = firsts[1:] - 1
            tokens = choose(guess, torch.from_numpy(run.logits[last])).numpy()
            found[:, guess] = tokens
            at, firsts = at[last] + 1, each
        return found

    def _of_decoder(
        self, tokens: Array, firsts: Array, rows: Array, at: Array, cache: SourceBuffers, guesses: int = 0,
        choosable: int = 0,
    ) -> _Given:  # fmt: skip
        at = np.ascontiguousarray(at.reshape(-1))
        return _Given(
            tokens.reshape(-1), firsts, rows, at, at + 1, self._memory(cache.own), self._memory(cache.cross),
            cache.lengths.numpy(), holding=cache, guesses=guesses, choosable=choosable,
        )  # fmt: skip

    def encode(self, sources: Mapping[int, Source], cache: SourceBuffers) -> None:
        room, rows = self._memory(cache.cross).capacity, len(cache.lengths)
        for row, source in sources.items():
            inside(row, row, rows, "rows")
            require(len(source) > 0, "a source is empty; give at least one token", PromptError)
            inside(1, len(source), room + 1, "tokens of a source")
        group: dict[int, Sequence[int]] = {}
        for row, source in sources.items():
            if isinstance(source, Tensor):  # an encoder's finished output
                size = self.sizes.hidden
                require(source.shape[1:] == (size,), f"a source must be [tokens, {size}], got {tuple(source.shape)}")
                self._fill({row: len(source)}, source.to(torch.float32).contiguous().numpy(), cache)
                continue
            if group and sum(map(len, group.values())) + len(source) > _ENCODED_TOGETHER:
                self._encode(group, cache)
                group = {}
            group[row] = source
        if group:
            self._encode(group, cache)

    def _encode(self, group: Mapping[int, Sequence[int]], cache: SourceBuffers) -> None:
        """Sources, one behind the other."""
        lengths = np.array([len(source) for source in group.values()])
        rows, longest, layers = len(group), int(lengths.max()), self.sizes.encoder
        shape = (2, rows, self.sizes.heads, longest, self.sizes.depth)
        scratch = np.empty(shape, np.float32)  # one for all layers: none is read after the next has begun
        keys, values = (np.full(layers, half.ctypes.data) for half in scratch)
        memory = t5_records.T5Memory(rows, longest, keys, values)
        firsts = np.concatenate([[0], lengths.cumsum()])
        given = _Given(
            np.concatenate([np.asarray(source, np.int64) for source in group.values()]), firsts, np.arange(rows),
            at=np.arange(firsts[-1]) - np.repeat(firsts[:-1], lengths), seen=np.repeat(lengths, lengths),
            own=memory, cross=memory, sources=lengths, holding=scratch,
        )  # fmt: skip
        run = self._run(self.encoder, given, (), logits=False)
        self._fill({row: len(source) for row, source in group.items()}, run.found, cache)

    def _fill(self, lengths: Mapping[int, int], found: Array, cache: SourceBuffers) -> None:
        """Keep the keys and values of what the encoder gave for the sources of some rows."""
        firsts, rows = np.concatenate([[0], np.cumsum(list(lengths.values()))]), np.array(list(lengths))
        self._team.run(
            t5.t5_cross, self.decoder, self._cross_places, self._cross_powers, found, firsts, rows,
            self._memory(cache.cross), zeros(1), holding=(cache, self._weights),
        )  # fmt: skip
        for row, length in lengths.items():
            cache.filled(row, length)

    def _run(
        self, model: t5_records.T5Stack, given: _Given, keep: Sequence[int], logits: bool
    ) -> t5_records.T5Run:  # fmt: skip
        """Run an encoder or a decoder; ``keep`` the inputs of these layers."""
        given.check()
        count, hidden = len(given.tokens), model.hidden
        tokens = count + len(given.rows) * max(0, given.guesses - 1)  # a guess is a run of its own in the same call
        kept = np.full(model.layers, -1)
        if keep:
            kept[list(keep)] = range(len(keep))
        run = t5_records.T5Run(
            tokens=np.minimum(np.maximum(given.tokens, 0), self.sizes.vocabulary - 1), firsts=given.firsts,
            rows=given.rows,
            at=given.at, seen=given.seen, bias=self._bias(model.crosses, given.own.capacity), own=given.own,
            cross=given.cross, sources=given.sources,
            x=np.empty((count, hidden), np.float32), found=np.empty((count, hidden), np.float32),
            logits=np.empty((count if logits else 0, self.sizes.vocabulary), np.float32),
            kept=kept, states=np.empty((len(keep), count, hidden), np.float32),
            mixed=np.empty((count, model.heads * model.depth), np.float32),
            between=np.empty((count, model.inner), np.float32),
            guesses=np.zeros((given.guesses, len(given.rows)), np.int64), choosable=given.choosable,
            counters=zeros((t5_records.PIECES * model.layers + t5_records.BESIDE) * max(1, given.guesses)),
            threads=self.threads if tokens * self._read > _WORTH_THREADS else 1,
        )  # fmt: skip
        team = self._team if run.threads > 1 else self._alone
        team.run(t5.t5_layers, model, run, holding=(given.holding, self._weights))
        return run

    def _bias(self, decoder: bool, reach: int) -> Array:
        """What relative positions add, for keys at most ``reach`` away; tables grow as they are needed."""
        with self._growing:
            if reach > self._reach:
                self._reach = max(256, 1 << (reach - 1).bit_length())
                self._biases = [
                    biases(
                        torch.from_numpy(self._weights.view(f"{stack}.bias", np.float32).copy()), self._reach,
                        self.sizes.distance, both_ways=stack == "encoder",
                    ).numpy()
                    for stack in ("encoder", "decoder")
                ]  # fmt: skip
            return self._biases[decoder]

    def _memory(self, buffers: Buffers) -> t5_records.T5Memory:
        """Addresses of keys and values, layer by layer; buffers stay where they are from run to run."""
        known = self._known.get(buffers)
        if known is None:
            pairs = buffers.buffers()
            assert all(buffer.is_contiguous() for pair in pairs for buffer in pair)
            keys, values = (np.array([buffer.data_ptr() for buffer in kind]) for kind in zip(*pairs, strict=True))
            rows, _, capacity, _ = pairs[0][0].shape
            known = self._known[buffers] = t5_records.T5Memory(rows, capacity, keys, values)
        return known
