"""Reading the result of a step off a GPU: waiting for it costs nothing, and not for ever."""

from __future__ import annotations

import pytest
import torch

from outrider.decoding import step_result
from outrider.decoding.step_result import PendingStep
from outrider.errors import DeviceError


def test_a_gpu_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hang: after two minutes an error says where to look."""
    asked = []

    class Never:
        def query(self) -> bool:
            asked.append(1)
            return False

    pending = PendingStep(torch.zeros(1, 4))
    pending._event = Never()  # type: ignore[assignment]
    monkeypatch.setattr(step_result, "PATIENCE", 0.02)
    with pytest.raises(DeviceError, match="nvidia-smi"):
        pending.read()
    assert len(asked) > 1


def test_waiting_for_a_gpu_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a second was asked after without a pause, which kept a core busy and other threads waiting."""

    class Time:
        now = slept = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds
            self.slept += seconds

    time = Time()

    class Later:
        def query(self) -> bool:
            time.now += 1e-6
            return time.now > 1.0

    monkeypatch.setattr(step_result, "time", time)
    pending = PendingStep(torch.zeros(1, 4))
    pending._event = Later()  # type: ignore[assignment]
    assert pending.read().rows == [[0.0] * 4]
    assert time.slept > 0.9
