"""Whether the host may read a tensor's values for nothing: on a CPU it may, on a GPU that waits for the device."""

from __future__ import annotations

import torch

on_cpu = True
"""False in tests of captured steps, which run on a CPU as they would on a GPU."""


def free(device: torch.device) -> bool:
    """Whether a step may look at values on this device, and choose shapes by them."""
    return on_cpu and device.type == "cpu"
