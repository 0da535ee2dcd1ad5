"""What a step decided, on its way to the host: one table, one transfer, read when it has arrived."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.algorithm import Step
from outrider.errors import DeviceError

PATIENCE = 120.0
"""Seconds after which a GPU that has not answered is given up."""

SPIN = 1e-3
"""Seconds for which it is asked again at once; most steps have ended by then, and a sleep takes longer than asked."""

NAP = 2e-5
"""Seconds between questions after that: a core is not kept busy with waiting."""


def table(step: Step) -> Tensor:
    """[B, 4 + 3 G] float64: tokens are far below 2**53, so it carries integers and probabilities alike, unharmed."""

    def wide(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float64)

    drafted = step.draft.proposed.sum(-1)
    head = torch.stack([wide(step.count), wide(drafted), wide(step.finite)], 1)
    return torch.cat([head, wide(step.emitted), wide(step.draft.tokens), wide(step.overlap)], 1)


@dataclass(frozen=True)
class HostStep:
    """The result of a step, copied to the host: a list of numbers for each row."""

    rows: list[list[float]]

    @staticmethod
    def of(step: Step) -> HostStep:
        """Of a step on a CPU: nothing has to travel, and what ``table`` would hold is read as it is."""
        drafted = map(sum, step.draft.proposed.tolist())
        heads = zip(step.count.tolist(), drafted, step.finite.tolist(), strict=True)
        rest = zip(*(part.tolist() for part in (step.emitted, step.draft.tokens, step.overlap)), strict=True)
        return HostStep(
            [
                [*head, *emitted, *drafted, *overlap]
                for head, (emitted, drafted, overlap) in zip(heads, rest, strict=True)
            ]
        )

    @property
    def guesses(self) -> int:
        """Columns of guesses in the target's run, whoever proposed them."""
        return (len(self.rows[0]) - 4) // 3

    def row(self, slot: int) -> tuple[list[int], list[int], list[float], int]:
        """Tokens emitted, guesses drafted, their overlaps, and how many of the emitted rest on numbers."""
        values = self.rows[slot]
        count, drafted, healthy = int(values[0]), int(values[1]), int(values[2])
        emitted = list(map(int, values[3 : 3 + count]))
        if drafted == 0:
            return emitted, [], [], healthy
        g = self.guesses
        guesses = list(map(int, values[4 + g : 4 + g + drafted]))
        return emitted, guesses, values[4 + 2 * g : 4 + 2 * g + drafted], healthy


class PendingStep:
    """A step's result on its way to the host. The device's own memory may be overwritten as soon as this exists."""

    def __init__(self, result: Tensor | Step, began: torch.cuda.Event | None = None) -> None:
        """Of a table, or of a step itself; ``began``: recorded on the device before it."""
        self._began = began
        self.logits: Tensor | None = None  # [B, G+1, V] that it chose from, where somebody wants them
        self._event: torch.cuda.Event | None = None
        self.device_seconds: float | None = None  # of the step, once it was waited for, where the device can tell
        self.usual = True  # False: captured as a CUDA graph on the way, or eager for once: it took longer than others
        self.woke = False  # it was the first of a drafter that had rested, which read the texts before
        self.settled = 0.0  # seconds that launching it had to wait for earlier work of the device
        self._read: HostStep | None = None
        if isinstance(result, Step) and result.count.device.type == "cpu":
            self._read = HostStep.of(result)
            return
        values = table(result) if isinstance(result, Step) else result
        if values.device.type != "cuda":
            self._host = values.clone()
            return
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._event = torch.cuda.Event(enable_timing=began is not None)  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        """Until the device has done the step, but not for ever."""
        if self._event is None:
            return
        began = time.monotonic()
        while not self._event.query():  # type: ignore[no-untyped-call]
            waited = time.monotonic() - began
            if waited > PATIENCE:
                raise DeviceError(f"the GPU has not answered for {PATIENCE:.0f} s; check it with nvidia-smi")
            time.sleep(NAP if waited > SPIN else 0)  # 0: other threads may run
        if self._began is not None:
            self.device_seconds = self._began.elapsed_time(self._event) / 1000

    def read(self) -> HostStep:
        """What the step gave; waits for it."""
        if self._read is not None:
            return self._read
        self.wait()
        return HostStep(self._host.tolist())
