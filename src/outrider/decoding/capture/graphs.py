"""A whole decoding step as one CUDA graph: captured once for its shapes, then replayed with one launch.

A step can be captured when it changes tensors in place, makes no host-device sync, and chooses its shapes by what the
host knows: its arguments and each session's ``behind``. ``BufferedSession`` and the drafters are written that way,
so this file only captures: it runs the very same functions, and the eager session stays the reference.
On a CPU a replay is calling the function again, so that everything but the launch itself is tested there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.core.protocols import Session
from outrider.decoding.capture.checks import CaptureCheck, NotCapturable
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.errors import DeviceError
from outrider.models.session import BufferedSession
from outrider.runtime import timer

_MOST = 64
"""Graphs kept; a caller whose options are new in every call must not fill the memory."""

_STEADY = 2
"""The most tokens pending in a session from one step to the next: more is caught up with eagerly, once."""


@dataclass
class _StepGraph:
    graph: torch.cuda.CUDAGraph | None  # None on a CPU
    step: Callable[[], Tensor]  # kept on a GPU, too: what it holds is what the graph reads, options included
    output: Tensor  # always the same memory
    starts: tuple[int, ...]  # the ``behind`` of each session it serves: a bound, so less is served too
    leaves: tuple[int, ...]  # what it is afterwards


class StepGraphs:
    """The steps of one batch, captured as CUDA graphs that share one memory pool.

    What a step changes is the target's session and what ``drafter`` says that it is made of.
    """

    def __init__(self, target: Session, drafter: SafeDrafter, note: Callable[[str], None] | None = None) -> None:
        self._drafting = drafter.abilities
        sessions = [target, *self._drafting.model_sessions]
        self.sessions = [session for session in sessions if isinstance(session, BufferedSession)]
        self._targets = int(isinstance(target, BufferedSession))
        self.contexts = [*(session.context for session in sessions), *self._drafting.contexts]
        self.note = note or (lambda text: None)
        self.device = self.contexts[0].device
        self._graphs: dict[Hashable, list[_StepGraph]] = {}
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None
        self.made = 0  # graphs, those dropped since included
        self._state = self.state()

    def state(self) -> list[Tensor]:
        """Every tensor a step changes, except memory beyond the committed tokens, which is scratch."""
        state = [context.lengths for context in self.contexts]
        for session in self.sessions:
            state += [session.cached] + ([] if session.hidden is None else [session.hidden])
        return state + list(self._drafting.learned)

    def run(self, name: Hashable, step: Callable[[], Tensor], drafting: bool = True) -> Tensor:
        """What ``step`` returns, by a replay if it was captured for these shapes; it is captured if not.

        ``drafting`` False: only the target's session runs, and what the others have pending is of no account.
        The result's memory is the graph's own: the next run with that name overwrites it.
        """
        if any(a is not b for a, b in zip(self._state, self.state(), strict=True)):
            self._graphs.clear()  # rows were selected: the buffers are others now
            self._state = self.state()
        running = self._running(drafting)
        captured = self._fitting(name, running) or self.capture(name, step, running)
        before = self._behind()
        self._set_behind(captured.starts[:running] + before[running:])
        if captured.graph is None:
            captured.output.copy_(captured.step())
        else:
            captured.graph.replay()
        grown = zip(before[running:], captured.starts[running:], captured.leaves[running:], strict=True)
        self._set_behind(captured.leaves[:running] + tuple(had + left - was for had, was, left in grown))
        return captured.output

    @property
    def kept(self) -> int:
        return sum(map(len, self._graphs.values()))

    def steady(self, drafting: bool = True) -> bool:
        """Whether no session has more to catch up with than a step leaves behind: only then a graph pays."""
        return max(self._behind()[: self._running(drafting)], default=1) <= _STEADY

    def _running(self, drafting: bool) -> int:
        return len(self.sessions) if drafting else self._targets

    def _behind(self) -> tuple[int, ...]:
        return tuple(session.behind for session in self.sessions)

    def _set_behind(self, values: tuple[int, ...]) -> None:
        for session, behind in zip(self.sessions, values, strict=True):
            session.behind = behind

    def _fitting(self, name: Hashable, running: int) -> _StepGraph | None:
        """A graph for at least as much pending as there is now."""
        now = self._behind()[:running]
        for captured in self._graphs.get(name, ()):
            if all(has >= needs for has, needs in zip(captured.starts, now, strict=False)):
                return captured
        return None

    def capture(self, name: Hashable, step: Callable[[], Tensor], running: int) -> _StepGraph:
        """Run the step twice for real, so that everything lazy has happened, undo that, and capture it.

        ``behind`` is a bound. Captured at the larger of what it is now and what the step leaves, a graph
        serves the first step as well as those that follow.
        """
        began = timer.now()
        self.note(f"capturing {name} ...")
        kept = [tensor.clone() for tensor in self._state]
        before, graph = self._behind(), None
        try:
            self._beside(step)
            starts = tuple(map(max, before[:running], self._behind())) + before[running:]
            self._set_behind(starts)
            # Watched: what a graph cannot hold is found before one is begun.
            with CaptureCheck(self.device, constants=self.device.type == "cpu"):
                output = self._beside(step)
            leaves = self._behind()
            if self.device.type != "cpu":
                self._set_behind(starts)
                output, graph = self.cuda_graph(step, output)
        except BaseException:
            for session in self.sessions:
                session.forget_guesses()
            raise
        finally:
            self._set_behind(before)
            for tensor, value in zip(self._state, kept, strict=True):
                tensor.copy_(value)
        if self.kept >= _MOST:
            self._graphs.pop(next(iter(self._graphs)))  # the oldest
        made = _StepGraph(graph, step, output, starts, leaves)
        self._graphs.setdefault(name, []).append(made)
        self.made += 1
        self.note(f"captured {name} in {timer.now() - began:.1f} s")
        return made

    def _beside(self, step: Callable[[], Tensor]) -> Tensor:
        """A step for real, on the stream that will capture: what is set up per stream is set up there."""
        if self.device.type == "cpu":
            return step()
        stream = self.side_stream()
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            output = step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return output

    def cuda_graph(self, step: Callable[[], Tensor], like: Tensor) -> tuple[Tensor, torch.cuda.CUDAGraph]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self.side_stream(), capture_error_mode="thread_local"):
                output = step()
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceError(
                f"no GPU memory left for capturing a step ({_brief(error)}); use fewer slots, a smaller "
                "max_new_tokens, or graphs=False"
            ) from error
        except Exception as error:
            torch.cuda.synchronize(self.device)
            raise NotCapturable(_brief(error)) from error
        if output.shape != like.shape:
            raise NotCapturable(f"its result has shape {tuple(like.shape)} at first and {tuple(output.shape)} later")
        return output, graph

    def side_stream(self) -> torch.cuda.Stream:
        """One stream for warming up and capturing: what is set up per stream must exist when a capture starts."""
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._side


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
