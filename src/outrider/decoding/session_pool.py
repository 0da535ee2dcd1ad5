"""Step runners kept from call to call, so that graphs captured for a shape serve every later call of that shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch

from outrider.core.protocols import Drafter, LanguageModel, Shape
from outrider.decoding.memory import exhausted, memory_for
from outrider.decoding.step_runner import StepRunner
from outrider.errors import DeviceError

MOST_IDLE = 4
"""Step runners kept that nobody uses: each holds the keys and values of its slots."""


@dataclass(frozen=True, eq=False)
class _Batch:
    """What a runner was made for. Equal to itself only, so that looking for one runs no other code."""

    target: LanguageModel
    drafter: Drafter
    slots: int
    shape: Shape

    def is_like(self, other: _Batch) -> bool:
        """The same objects, not merely equal ones: captured graphs read their memory."""
        same = self.target is other.target and self.drafter is other.drafter
        return same and (self.slots, self.shape) == (other.slots, other.shape)


@dataclass
class SessionPool:
    """Lends runners. With ``graphs`` False each is made for one batch and dropped, as costs nothing on a CPU.

    Threads may share it, and there is no lock: the garbage collector may end a forgotten stream, and so return its
    runner, in the middle of any line here, in the thread that would hold the lock. Each change is one operation of a
    list, which nothing interrupts.
    """

    graphs: bool = False
    note: Callable[[str], None] | None = None  # told when a graph is being captured
    _idle: list[tuple[_Batch, StepRunner]] = field(default_factory=list, repr=False)  # the latest used last
    _eager: list[_Batch] = field(default_factory=list, repr=False)  # tried, and not capturable

    @property
    def idle(self) -> tuple[StepRunner, ...]:
        """Step runners that no call uses now, the latest used last."""
        return tuple(runner for _, runner in self._idle)

    @contextmanager
    def lend(self, models: tuple[LanguageModel, Drafter], slots: int, shape: Shape) -> Iterator[StepRunner]:
        """A runner for one batch. One that an error went through is not lent again."""
        batch = _Batch(*models, slots, shape)
        runner = self._take(batch) or self._make(batch)
        try:
            yield runner
        except GeneratorExit:  # the caller stopped listening: nothing is wrong with the runner
            self._keep(batch, runner)
            raise
        except Exception as error:
            if (reason := _failure_of_the_device(error, batch)) is None:
                raise
            self.clear()
            raise DeviceError(reason) from error
        self._keep(batch, runner)

    def _take(self, batch: _Batch) -> StepRunner | None:
        for entry in tuple(self._idle):
            if batch.is_like(entry[0]):
                with suppress(ValueError):  # another thread was first
                    self._idle.remove(entry)
                    entry[1].idle()
                    return entry[1]
        return None

    def _keep(self, batch: _Batch, runner: StepRunner) -> None:
        if not self.graphs or runner.spoiled or runner.drafter.error is not None:
            return
        if not runner.graphs:  # it tried and gave up: the next one need not find that out, and say so, again
            self._eager = [*self._eager[-MOST_IDLE:], batch]
            return
        self._idle.append((batch, runner))
        while len(self._idle) > MOST_IDLE:
            with suppress(IndexError):
                self._idle.pop(0)

    def _make(self, batch: _Batch) -> StepRunner:
        graphs = self.graphs and not any(
            known.target is batch.target and known.drafter is batch.drafter for known in self._eager
        )
        models = (batch.target, batch.drafter)
        try:
            return StepRunner(models, batch.slots, batch.shape, graphs, self.note)
        except (RuntimeError, MemoryError) as error:
            if exhausted(error) is None:
                raise
            self.clear()
        with memory_for(*_wanted(batch)):
            return StepRunner(models, batch.slots, batch.shape, graphs, self.note)

    def clear(self) -> None:
        """Drop every idle runner, its buffers and its graphs."""
        self._idle.clear()
        if torch.cuda.is_available():
            with suppress(RuntimeError):  # a GPU that has failed refuses this, too
                torch.cuda.empty_cache()


def _wanted(batch: _Batch) -> tuple[str, str]:
    """What memory is needed for, and how to need less."""
    what = f"{batch.slots} slots of {batch.shape.capacity} tokens"
    return what, "use fewer slots, a smaller max_new_tokens, a shorter prompt, or a smaller width"


def _failure_of_the_device(error: Exception, batch: _Batch) -> str | None:
    """What to tell the user where the device itself is the reason; None where it is not."""
    if (memory := exhausted(error)) is not None:
        what, remedy = _wanted(batch)
        return f"no {memory} for {what}; {remedy}"
    if isinstance(error, RuntimeError) and "CUDA error" in str(error):
        return (
            f"the GPU has failed ({' '.join(str(error).split())[:120]}); nothing more can run on it from this process: "
            "start anew, and check it with nvidia-smi if that fails too"
        )
    return None
