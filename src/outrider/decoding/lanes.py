"""Steppers kept from call to call, so that what was recorded for a shape serves every later call of that shape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch

from outrider.decoding.stepper import Stepper
from outrider.errors import DeviceError
from outrider.types import Drafter, LanguageModel, Shape

MOST_IDLE = 4
"""Steppers kept that nobody uses: each holds the keys and values of its slots."""


@dataclass(frozen=True)
class _Batch:
    """What a stepper was made for."""

    target: LanguageModel
    drafter: Drafter
    slots: int
    shape: Shape

    def is_like(self, other: _Batch) -> bool:
        """The same objects, not merely equal ones: their memory is what was recorded."""
        same = self.target is other.target and self.drafter is other.drafter
        return same and (self.slots, self.shape) == (other.slots, other.shape)


@dataclass
class Lanes:
    """Lends steppers. With ``graphs`` False each is made for one batch and dropped, as costs nothing on a CPU."""

    graphs: bool = False
    note: Callable[[str], None] | None = None  # told when something is being recorded
    _idle: list[tuple[_Batch, Stepper]] = field(default_factory=list, repr=False)  # the latest used last
    _eager: list[_Batch] = field(default_factory=list, repr=False)  # tried, and not recordable
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def lane(self, models: tuple[LanguageModel, Drafter], slots: int, shape: Shape) -> Iterator[Stepper]:
        """A stepper for one batch. One that an error went through is not lent again."""
        batch = _Batch(*models, slots, shape)
        stepper = self._take(batch) or self._make(batch)
        try:
            yield stepper
        except GeneratorExit:  # the caller stopped listening: nothing is wrong with the stepper
            self._keep(batch, stepper)
            raise
        except Exception as error:
            if (reason := _failure_of_the_gpu(error, batch)) is None:
                raise
            self.clear()
            raise DeviceError(reason) from error
        self._keep(batch, stepper)

    def _take(self, batch: _Batch) -> Stepper | None:
        with self._lock:
            for place, (known, stepper) in enumerate(self._idle):
                if batch.is_like(known):
                    del self._idle[place]
                    return stepper
        return None

    def _keep(self, batch: _Batch, stepper: Stepper) -> None:
        if not self.graphs or stepper.spoiled or stepper.drafter.error is not None:
            return
        with self._lock:
            if not stepper.graphs:  # it tried and gave up: the next one need not find that out, and say so, again
                self._eager = [*self._eager[-MOST_IDLE:], batch]
                return
            stepper.idle()
            self._idle.append((batch, stepper))
            del self._idle[:-MOST_IDLE]

    def _make(self, batch: _Batch) -> Stepper:
        graphs = self.graphs and not any(
            known.target is batch.target and known.drafter is batch.drafter for known in self._eager
        )
        models = (batch.target, batch.drafter)
        try:
            return Stepper(models, batch.slots, batch.shape, graphs, self.note)
        except torch.cuda.OutOfMemoryError:
            self.clear()
        try:
            return Stepper(models, batch.slots, batch.shape, graphs, self.note)
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceError(_no_memory(batch)) from error

    def clear(self) -> None:
        """Drop every idle stepper, its buffers and its recordings."""
        with self._lock:
            self._idle.clear()
        if torch.cuda.is_available():
            with suppress(RuntimeError):  # a GPU that has failed refuses this, too
                torch.cuda.empty_cache()


def _no_memory(batch: _Batch) -> str:
    return (
        f"no GPU memory for {batch.slots} slots of {batch.shape.capacity} tokens; use fewer slots, a smaller "
        "max_new_tokens, or a shorter prompt"
    )


def _failure_of_the_gpu(error: Exception, batch: _Batch) -> str | None:
    """What to tell the user where the GPU itself is the reason; None where it is not."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return _no_memory(batch)
    if isinstance(error, RuntimeError) and "CUDA error" in str(error):
        return (
            f"the GPU has failed ({' '.join(str(error).split())[:120]}); nothing more can run on it from this process: "
            "start anew, and check it with nvidia-smi if that fails too"
        )
    return None
