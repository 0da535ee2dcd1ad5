"""What this machine's CPU can do."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def _arm_features() -> frozenset[str]:
    """Words of the description that Linux gives; none on other CPUs."""
    if platform.machine() not in ("aarch64", "arm64"):
        return frozenset()
    if platform.system() == "Darwin":  # every Mac with an ARM CPU
        return frozenset({"asimdhp", "asimddp"})
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()


def computes_in_half() -> bool:
    """Whether vectors of float16 are multiplied as they are, and not through float32. Of ARM's CPUs only."""
    return "asimdhp" in _arm_features()


def multiplies_bytes() -> bool:
    """Whether there are dot products of bytes. Of ARM's CPUs only."""
    return "asimddp" in _arm_features()
