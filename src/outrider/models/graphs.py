"""A whole decoding step as one CUDA graph: recorded once for its shapes, then replayed with one launch.

A step is recordable when it changes tensors in place, asks the device nothing, and chooses its shapes by what the
host knows: its arguments and each session's ``behind``. ``BufferedSession`` and the drafters are written that way,
so this file is only a recorder: it runs the very same functions and the eager session stays the reference.
On a CPU a replay is calling the function again, so that everything but the launch itself is tested there.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.context import Context
from outrider.errors import DeviceError
from outrider.models.session import BufferedSession


class NotRecordable(Exception):
    """A step that asks the device something, or copies from the host, cannot be replayed; run it eagerly."""


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph | None  # None on a CPU
    step: Callable[[], Tensor]
    output: Tensor  # always the same memory
    leaves: tuple[int, ...]  # what ``behind`` of each session is afterwards


class Recorder:
    """Recordings of the steps of one batch, sharing one memory pool.

    ``parts`` are the target session and the draft session whose state a step changes.
    """

    def __init__(self, *parts: Any, note: Callable[[str], None] | None = None) -> None:
        found = [piece for part in parts for piece in _pieces(part)]
        self.sessions = [piece for piece in found if isinstance(piece, BufferedSession)]
        self.contexts = [piece.context if isinstance(piece, BufferedSession) else piece for piece in found]
        self.note = note or (lambda text: None)
        self.device = self.contexts[0].device
        self._recordings: dict[Hashable, _Recording] = {}
        self._pool: Any = None
        self._state = self.state()

    def state(self) -> list[Tensor]:
        """Every tensor a step changes, except memory beyond the committed tokens, which is scratch."""
        state = [context.lengths for context in self.contexts]
        for session in self.sessions:
            state += [session.cached] + ([] if session.hidden is None else [session.hidden])
        return state

    def run(self, name: Hashable, step: Callable[[], Tensor]) -> Tensor:
        """What ``step`` returns, by a replay if it was recorded for these shapes; a recording is made if not.

        The result's memory is the recording's own: the next run with that name overwrites it.
        """
        if any(a is not b for a, b in zip(self._state, self.state(), strict=True)):
            self._recordings.clear()  # rows were selected: the buffers are others now
            self._state = self.state()
        key = (name, self._behind())
        if key not in self._recordings:
            key, recording = self._record(name, step)
            self._recordings[key] = recording
        recording = self._recordings[key]
        if recording.graph is None:
            recording.output.copy_(recording.step())
        else:
            recording.graph.replay()
        for session, behind in zip(self.sessions, recording.leaves, strict=True):
            session.behind = behind
        return recording.output

    @property
    def recorded(self) -> int:
        return len(self._recordings)

    def _behind(self) -> tuple[int, ...]:
        return tuple(session.behind for session in self.sessions)

    def _record(self, name: Hashable, step: Callable[[], Tensor]) -> tuple[Hashable, _Recording]:
        """Run the step twice for real, so that everything lazy has happened, undo that, and record it.

        After the first run ``behind`` has its steady value, a bound that holds before the first run too: recording
        at the steady value serves both.
        """
        began = time.perf_counter()
        self.note(f"recording {name} ...")
        kept = [tensor.clone() for tensor in self._state]
        before = self._behind()
        try:
            output = self._warm_up(step)
            steady = self._behind()
            if any(now < then for now, then in zip(steady, before, strict=True)):
                for session, behind in zip(self.sessions, before, strict=True):
                    session.behind = behind  # more is pending than in a steady step: record that case by itself
                steady = before
            graph = None if self.device.type == "cpu" else self._capture(step, output)
            output, graph = (output, None) if graph is None else graph
            leaves = self._behind() if graph is not None else self._leaves(step)
        finally:
            for tensor, value in zip(self._state, kept, strict=True):
                tensor.copy_(value)
        for session, behind in zip(self.sessions, steady, strict=True):
            session.behind = behind
        self.note(f"recorded {name} in {time.perf_counter() - began:.1f} s")
        return (name, steady), _Recording(graph, step, output, leaves)

    def _leaves(self, step: Callable[[], Tensor]) -> tuple[int, ...]:
        step()
        return self._behind()

    def _warm_up(self, step: Callable[[], Tensor]) -> Tensor:
        if self.device.type == "cpu":
            return step().clone()
        stream = self._stream()
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                output = step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return output

    def _capture(self, step: Callable[[], Tensor], like: Tensor) -> tuple[Tensor, torch.cuda.CUDAGraph]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream(), capture_error_mode="thread_local"):
                output = step()
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceError(
                f"no GPU memory left for recording a step ({_brief(error)}); use fewer slots, a smaller "
                "max_new_tokens, or graphs=False"
            ) from error
        except Exception as error:
            torch.cuda.synchronize(self.device)
            raise NotRecordable(_brief(error)) from error
        if output.shape != like.shape:
            raise NotRecordable(f"its result has shape {tuple(like.shape)} at first and {tuple(output.shape)} later")
        return output, graph

    def _stream(self) -> torch.cuda.Stream:
        """One stream for warming up and recording: what is set up per stream must exist when recording starts."""
        if not hasattr(self, "_side"):
            self._side = torch.cuda.Stream(self.device)
        return self._side


def _pieces(part: Any) -> Iterator[BufferedSession | Context]:
    """The sessions and contexts behind a session: wrappers hold others as ``session`` or ``sessions``."""
    if isinstance(part, BufferedSession):
        yield part
        return
    inner = [part.session] if getattr(part, "session", None) is not None else list(getattr(part, "sessions", ()))
    for one in inner:
        yield from _pieces(one)
    if isinstance(getattr(part, "context", None), Context):
        yield part.context


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
