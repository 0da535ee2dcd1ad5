"""Tensor parallelism: transformers shards a target over the processes of torchrun, and rank 0 decides everything.

Decoding runs on rank 0 alone: drafts, sampling, acceptance, the planner and its clock, files and streams. The other
ranks hold their shard of the weights and of the KV cache, and repeat the runs and the changes of the cache that rank 0
tells them of. So no two ranks can disagree about what to do next, which is what hangs collectives elsewhere.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, NoReturn
from weakref import finalize

import torch
from torch import Tensor
from torch import distributed as dist

from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.errors import BadOption, DeviceError, OutriderError, require
from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.engine_protocol import Engine, Result, Wanted

_LOADING = timedelta(hours=2)
"""How long ranks wait for one another in a collective: shards are read at different speeds."""

_FOREVER = timedelta(days=3650)
"""How long a rank waits to be told what to do: a server may be idle."""


def rank() -> int:
    """Of this process; 0 outside torchrun."""
    return int(os.environ.get("RANK", "0"))


def check_size(size: int) -> None:
    """Refuse a number of shards that is not the number of processes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    require(
        size == world,
        f"tensor_parallel={size} needs {size} processes, and there are {world}; start it with "
        f"`torchrun --nproc-per-node {size} ...`",
    )


class Ranks:
    """The processes of one model. Rank 0 tells, the others listen."""

    def __init__(self, device: torch.device) -> None:
        if not dist.is_initialized():
            bound = device if device.type == "cuda" else None
            dist.init_process_group("nccl" if bound else "gloo", timeout=_LOADING, device_id=bound)
        self.device, self.size = device, dist.get_world_size()
        self.dropped: list[int] = []  # caches that nobody uses any more: told with the next command
        self._commands = dist.new_group(backend="gloo", timeout=_FOREVER)
        self._lock = threading.Lock()
        self._in_step = True
        self._numbers = count(1)

    def new_number(self) -> int:
        """What a model or a cache goes by."""
        return next(self._numbers)

    @contextmanager
    def told(self, *command: Any) -> Iterator[None]:
        """Tell all ranks what is done now, for as long as this rank does it, too. Ctrl-C waits for the end of it."""
        with self._lock, _uninterrupted():
            require(
                self._in_step,
                "the processes of a tensor-parallel model are no longer in step after an error; start them anew",
                DeviceError,
            )
            self._in_step = False
            dropped = [self.dropped.pop() for _ in range(len(self.dropped))]  # the garbage collector may add meanwhile
            dist.broadcast_object_list([(dropped, *command)], src=0, group=self._commands)
            yield
            self._in_step = True

    def listen(self) -> tuple[Any, ...]:
        """What rank 0 tells: caches that are dropped, the name of a command, what it is about, its arguments."""
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=self._commands)
        return tuple(heard[0])

    def share(self, tokens: Tensor) -> Tensor:
        """Rank 0's tokens on every rank, where they are of the same shape."""
        dist.broadcast(tokens, src=0)
        return tokens

    def end(self) -> None:
        """Let the other ranks go, if they still listen."""
        if self._in_step:
            with suppress(RuntimeError), self.told("end", 0):  # of a rank that is gone already
                pass
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C takes effect at the end: between two collectives of one run it would leave the other ranks waiting."""
    if threading.current_thread() is not threading.main_thread():  # no signal is handled there
        yield
        return
    waiting: list[tuple[Any, ...]] = []
    before = signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if waiting and callable(before):
            before(*waiting[0])


class ShardedCache:
    """Rank 0's part of a KV cache, and the number by which the other ranks know theirs."""

    def __init__(self, ranks: Ranks, number: int, local: Any, rows: range | None = None) -> None:
        self.ranks, self.number, self.local, self.rows = ranks, number, local, rows

    def part(self, rows: range) -> ShardedCache:
        return ShardedCache(self.ranks, self.number, self.local.part(rows), rows)

    def select(self, rows: Tensor) -> ShardedCache:
        return _known(self.ranks, self.local.select(rows), "select", self.number, rows.cpu())

    def reorder(self, rows: Tensor, length: int, start: int = 0) -> None:
        self._change("reorder", rows, length, start)

    def move(self, to: Tensor, source: Tensor, length: int, start: int = 0) -> None:
        self._change("move", to, source, length, start)

    def clear_rows(self, rows: range, positions: range) -> None:
        self._change("clear_rows", rows, positions)

    def clear(self, rows: Tensor, positions: Tensor) -> None:
        self._change("clear", rows, positions)

    def _change(self, method: str, *given: Any) -> None:
        """What a session does to its cache, done on every rank."""
        on_host = [one.cpu() if isinstance(one, Tensor) else one for one in given]
        with self.ranks.told("change", self.number, method, on_host):
            _changed(self.local, method, given)


def _known(ranks: Ranks, local: Any, name: str, *given: Any) -> ShardedCache:
    """A cache that was made here: now the others make theirs. Memory that is full here is told to nobody."""
    cache = ShardedCache(ranks, ranks.new_number(), local)
    finalize(cache, ranks.dropped.append, cache.number)
    with ranks.told(name, cache.number, *given):
        return cache


class ShardedEngine:
    """Rank 0's engine: what it runs, all ranks run."""

    trims_prefill = False
    prefill_tokens = 1024

    def __init__(self, ranks: Ranks, number: int, local: Engine) -> None:
        self.ranks, self.number, self.local = ranks, number, local
        # Embeddings are sharded, too: a draft that reads hidden states has no use for them.
        self.facts: ModelFacts = replace(
            local.facts, hidden_size=None, layers=None, engine=f"torch on {ranks.size} ranks"
        )

    def allocate(self, rows: int, shape: Shape) -> ShardedCache:
        return _known(self.ranks, self.local.allocate(rows, shape), "allocate", self.number, rows, shape)

    def run(self, tokens: Tensor, positions: Tensor, cache: ShardedCache, wanted: Wanted) -> Result:
        shape = tuple(tokens.shape)
        with self.ranks.told("run", cache.number, cache.rows, shape, wanted):
            self.ranks.share(torch.stack([tokens, positions.expand_as(tokens)]))
            found = self.local.run(tokens, positions, cache.local, wanted)
        return Result(found.logits, None, None)

    def encode(self, sources: Mapping[int, Source], cache: Any) -> None:
        raise BadOption("tensor_parallel is for decoder-only models")


class ShardedModel(CheckpointModel):
    """A target whose layers are spread over ranks, as rank 0 sees it."""

    engine: ShardedEngine

    def __init__(self, ranks: Ranks, number: int, local: CheckpointModel) -> None:
        self.engine = ShardedEngine(ranks, number, local.engine)
        self.facts, self.config, self._generation_config = self.engine.facts, local.config, local.generation_config

    @property
    def generation_config(self) -> Any:
        return self._generation_config

    @property
    def embedding(self) -> NoReturn:
        raise BadOption(
            "with tensor_parallel the target's embeddings are sharded; use a draft that does not read them: one that "
            "needs no model, as 'copy', or a model of its own"
        )

    @property
    def unembedding(self) -> NoReturn:
        raise BadOption("with tensor_parallel the target's output layer is sharded; use a draft that does not read it")


def follow(build: Callable[..., CheckpointModel]) -> NoReturn:
    """Load what rank 0 loads and repeat what it runs, until it ends; then end this process. ``build``: as for lead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides what an interruption means
    try:
        _repeat(joined(), build)
    except OutriderError:  # rank 0 says it
        sys.exit(2)
    except RuntimeError as error:
        sys.exit(f"rank {rank()} ends: {str(error).splitlines()[0]}")
    dist.destroy_process_group()
    sys.exit(0)


def lead(build: Callable[..., CheckpointModel], *given: Any) -> ShardedModel:
    """The model that ``build(*given)`` gives on every rank, on rank 0, with ranks that follow it."""
    ranks = joined()
    number = ranks.new_number()
    with ranks.told("load", number, given):
        local = build(*given)
    return ShardedModel(ranks, number, local)


@cache
def joined() -> Ranks:
    """The ranks of this job. When rank 0's process ends, it lets the others go."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    ranks = Ranks(device)
    if rank() == 0:
        atexit.register(ranks.end)
    return ranks


def _repeat(ranks: Ranks, build: Callable[..., CheckpointModel]) -> None:
    engines: dict[int, Engine] = {}
    caches: dict[int, tuple[Engine, Any]] = {}
    while True:
        dropped, name, number, *given = ranks.listen()
        for gone in dropped:
            del caches[gone]
        if name == "end":
            return
        elif name == "load":
            engines[number] = build(*given[0]).engine
        elif name == "allocate":
            model, rows, shape = given
            caches[number] = engines[model], engines[model].allocate(rows, shape)
        elif name == "select":
            engine, cache = caches[given[0]]
            caches[number] = engine, cache.select(given[1].to(ranks.device))
        elif name == "change":
            _changed(caches[number][1], given[0], [_moved(one, ranks.device) for one in given[1]])
        else:
            engine, cache = caches[number]
            part, shape, wanted = given
            tokens, positions = ranks.share(torch.empty((2, *shape), dtype=torch.int64, device=ranks.device)).unbind()
            engine.run(tokens, positions, cache if part is None else cache.part(part), wanted)


def _changed(cache: Any, method: str, given: Sequence[Any]) -> None:
    changes = {"reorder": cache.reorder, "move": cache.move, "clear": cache.clear, "clear_rows": cache.clear_rows}
    changes[method](*given)


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value
