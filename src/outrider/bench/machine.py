"""The machine of a CPU benchmark: the CPU's name, its memory bandwidth, and the load of other processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from outrider.runtime import cpu, timer
from outrider.runtime.memory import available_bytes as available_bytes

READ_BYTES = 2**29  # far beyond any cache


def cpu_name() -> str:
    """As the system calls it; on ARM only lscpu knows the name."""
    if shutil.which("lscpu"):
        shown = subprocess.run(["lscpu"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
        for line in shown.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model name" and value.strip() not in ("", "-"):
                return value.strip()
    return cpu.facts().name


def read_bandwidth(threads: int, size: int = READ_BYTES, repeats: int = 7) -> dict[str, float]:
    """Bytes a second that so many threads read: the faster of two ways of reading an array once, its median time."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        array = torch.ones(size // 4)
        times: dict[str, list[float]] = {"sum": [], "amax": []}
        ways: dict[str, Callable[[], object]] = {"sum": array.sum, "amax": array.amax}
        for turn in range(repeats + 1):
            for name, read in ways.items():
                began = timer.now()
                read()
                if turn > 0:
                    times[name].append(timer.now() - began)
    finally:
        torch.set_num_threads(before)
    best = min(times.values(), key=median)
    return {"median": size / median(best), "min": size / max(best), "max": size / min(best), "n": repeats}


class Neighbours:
    """Cores that others used since the start, programs here and virtual machines beside this one: whether a measurement
    was alone on the machine."""

    def __init__(self, own_seconds: Callable[[], float]) -> None:
        self.own_seconds = own_seconds  # time on a core of everything that belongs to the measurement
        self.began, self.before = timer.now(), self._others()

    def _others(self) -> float | None:
        try:
            fields = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]
        except OSError:
            return None
        # user, nice and system, where user holds guests' time, too; and steal, which the host gave to others
        used = sum(int(field) for field in (*fields[:3], *fields[7:8]))
        return used / os.sysconf("SC_CLK_TCK") - self.own_seconds()

    def cores(self) -> float | None:
        """On average; None where the system does not tell."""
        now = self._others()
        if now is None or self.before is None:
            return None
        return max(0.0, now - self.before) / max(1e-9, timer.now() - self.began)
