"""Runs of a model compiled for this CPU by numba, on the memory of torch's tensors and of the file of weights."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

import numba
import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from outrider.models import jit_llama
from outrider.models.cache import RaggedCache
from outrider.models.engine_model import Run
from outrider.models.families import sliding_windows
from outrider.models.jit_files import PANEL, PARTS
from outrider.models.jit_math import STRIDE
from outrider.models.jit_tiles import DIGEST, compiled_before
from outrider.models.prepared import Prepared
from outrider.models.sizes import Sizes
from outrider.models.weight_files import WEIGHTS

Buffers = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]
"""Addresses of every layer's keys, of its values, and the capacity of both."""


Call = tuple[Callable[..., None], tuple[Any, ...], object]


class Crew:
    """Threads that wait, asleep, for a function to join in on; the caller is one of them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._gather()

    def _gather(self) -> None:
        self._process = os.getpid()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        for _ in range(self.threads - 1):
            Thread(target=_help, args=(self._calls,), daemon=True, name="outrider-crew").start()

    def run(self, function: Callable[..., None], *arguments: Any, holding: object) -> None:
        """Call it on every thread; back when the caller's own call is, which ends when all work is done.

        ``holding``: what the arguments' addresses point into. Should the caller be interrupted, the others go on.
        """
        if self._process != os.getpid():  # a fork has none of the threads
            self._gather()
        for _ in range(self.threads - 1):
            self._calls.put((function, arguments, holding))
        function(*arguments)

    def __del__(self) -> None:
        for _ in range(self.threads - 1):
            self._calls.put(None)


def _help(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        # What is wrong with a call its caller sees as well; a thread less would go unnoticed.
        with suppress(Exception):
            call[0](*call[1])
        del call  # what it reads must not stay until the next


class Engine:
    """A model's weights, mapped. Threads may share it."""

    reads_masks = False
    name = f"numba {numba.__version__}"
    kernels = DIGEST

    def __init__(self, prepared: Prepared, config: Any, vocabulary: int) -> None:
        self.threads = torch.get_num_threads()
        self._crew = Crew(self.threads)
        self.vocabulary = vocabulary
        self._known: WeakKeyDictionary[RaggedCache, Buffers] = WeakKeyDictionary()
        self._places = prepared.record["places"]
        with (prepared.folder / WEIGHTS).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file = np.frombuffer(self._map, np.uint8)
        self._half = prepared.weights == "float16"
        if self._half:
            self.name += " in float16"
        self.model, self.matrix = self._model(Sizes.of(config), config), self._matrix()
        self._compile(Sizes.of(config))

    def _compile(self, sizes: Sizes) -> None:
        """Run one token on buffers of its own: what is compiled is kept on disk, where the next process finds it."""
        if not compiled_before():
            Console(stderr=True).print("Compiling for this CPU (once, about 20 seconds)", highlight=False)
        cache = RaggedCache.allocate(
            [(sizes.shared, sizes.depth, sizes.depth)] * sizes.layers, 1, 1, torch.float32, torch.device("cpu")
        )
        half = torch.zeros((1, sizes.depth // 2))
        hidden, _ = self.run(cache, Run(torch.zeros((1, sizes.hidden)), torch.tensor([0]), half, half, None), ())
        self.logits(hidden)

    def _address(self, name: str) -> int:
        """Where a tensor lies, or 0 if there is none."""
        return self._file.ctypes.data + self._places[name][0] if name in self._places else 0

    def _model(self, sizes: Sizes, config: Any) -> jit_llama.Weights:
        names = [[f"model.layers.{layer}.{part}" for part in PARTS] for layer in range(sizes.layers)]
        place, shape = self._places["norms"]
        windows = sliding_windows(config)
        by_layer = (
            [windows[kind] for kind in config.layer_types] if isinstance(windows, dict) else [windows] * sizes.layers
        )
        return jit_llama.Weights(
            sizes.layers, sizes.hidden, sizes.heads, sizes.shared, sizes.depth,
            padded=-(-sizes.depth // PANEL) * PANEL, inner=sizes.inner, epsilon=float(sizes.epsilon),
            scale=sizes.depth**-0.5,
            places=np.array([[self._address(name) for name in row] for row in names]),
            biases=np.array([[self._address(f"{name}.bias") for name in row] for row in names]),
            norms=self._file[place:].view(np.float32)[: shape[0] * shape[1]].reshape(shape),
            windows=np.array([2**31 if window is None else window for window in by_layer]),
            half=self._half, powers=self._powers(4 * sizes.layers)[:-1].reshape(sizes.layers, 4, 2),
        )  # fmt: skip

    def _matrix(self) -> jit_llama.Matrix:
        return jit_llama.Matrix(self._address("output"), self._half, self._powers(0)[-1])

    def _powers(self, products: int) -> np.ndarray[Any, Any]:
        """What the inputs of all products are scaled by, the output matrix last; zeros where they are not."""
        if not self._half:
            return np.zeros((products + 1, 2), np.int64)
        place, shape = self._places["powers"]
        return self._file[place:].view(np.int64)[: shape[0] * shape[1]].reshape(shape)

    def run(self, cache: RaggedCache, given: Run, keep: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """-> hidden [N, size], and the inputs [N, size] of the layers to keep (from 1 on)."""
        model, tokens = self.model, given.x.shape[0]
        layers = sorted({layer for layer in keep if layer < model.layers})
        kept = np.full(model.layers, -1)
        kept[layers] = range(len(layers))
        keys, values, capacity = self._buffers(cache)
        found, states = torch.empty_like(given.x), torch.empty((len(layers), *given.x.shape))
        counters = _zeros(jit_llama.PIECES * model.layers + 1)
        batch = jit_llama.Batch(
            x=given.x.numpy().copy(), found=found.numpy(), starts=given.start.numpy(),
            cos=given.cos.numpy(), sin=given.sin.numpy(), capacity=capacity, keys=keys, values=values,
            kept=kept, states=states.numpy(),
            queries=np.empty((tokens, model.heads, model.depth), np.float32),
            mixed=np.empty((tokens, model.heads * model.depth), np.float32),
            gated=np.empty((tokens, model.inner), np.float32),
            counters=counters, threads=self.threads,
        )  # fmt: skip
        self._crew.run(jit_llama.layers, model, batch, holding=(cache, self._file))
        return found, dict(zip(layers, states, strict=True))

    def _buffers(self, cache: RaggedCache) -> Buffers:
        """Addresses of keys and values, layer by layer; buffers stay where they are from run to run."""
        known = self._known.get(cache)
        if known is None:
            buffers = cache.buffers()
            assert all(buffer.is_contiguous() for pair in buffers for buffer in pair)
            keys, values = (np.array([buffer.data_ptr() for buffer in kind]) for kind in zip(*buffers, strict=True))
            known = self._known[cache] = keys, values, int(buffers[0][0].shape[2])
        return known

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, size] -> [N, vocabulary]."""
        found = torch.empty((hidden.shape[0], self.vocabulary))
        given = hidden.contiguous().numpy()
        arguments = self.matrix, given, found.numpy(), _zeros(1), self.threads
        self._crew.run(jit_llama.output, *arguments, holding=self._file)
        return found


def _zeros(pieces: int) -> np.ndarray[Any, Any]:
    """Counters for pieces of work. An array, so that a thread that comes late still finds them."""
    return np.zeros(STRIDE // 8 * pieces, np.int64)
