"""The number of CPU threads (by affinity and cgroup quota), and a wait policy: waiting threads sleep, not spin.

torch counts the cores of the machine; a container or a quota may grant fewer, and threads beyond that only take turns.
The threads of one operation wait for each other hundreds of times in a decoding step. By default they spin while they
wait, for milliseconds: on a core that somebody else needs, too, everything then waits for a thread that does nothing.
Here they spin briefly and then sleep (docs/measured/threads.md has what each policy costs).

Nothing here imports torch before it is asked to set something.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""What is set for the OpenMP runtime, which reads it when it is loaded: with torch."""

CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""Settings by which a user decides how threads wait; where one is given, none is added."""


ADDED: dict[str, str] = {}
"""What was added to this process's environment, and so reaches the processes it starts."""


def wait_considerately(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Choose how threads wait, unless the user has -> whether it can still have an effect.

    Once torch is imported its threads keep the policy it was loaded with.
    """
    if "torch" in sys.modules or any(name in environment for name in CHOICES):
        return False
    environment.update(WAITING)
    ADDED.update(WAITING)
    return True


def limit_threads(environment: MutableMapping[str, str] = os.environ) -> int:
    """Let torch use no more threads than there are cores at hand -> how many it uses.

    OMP_NUM_THREADS wins. A smaller number, set by the caller or found by torch (which leaves out the second thread
    of a core), stays.
    """
    import torch

    if not environment.get("OMP_NUM_THREADS"):
        cores = available_cores()
        if torch.get_num_threads() > cores:
            torch.set_num_threads(cores)
    return int(torch.get_num_threads())


def available_cores(root: Path = Path("/")) -> int:
    """Cores this process may use at once: its affinity, and the CPU quota of its control groups.

    Part of a core counts as one: a thread that has to pause now and then still adds to the others' work.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *(math.ceil(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """The quota of every control group this process is in, in cores: its own group's and those around it."""
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in groups:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2; beside version 1 it may be mounted at "unified"
            for top in (mounts, mounts / "unified"):
                yield from _read(top, path, _version_2)
        elif "cpu" in controllers.split(","):
            for top in (mounts / controllers, mounts / "cpu"):
                yield from _read(top, path, _version_1)


def _read(top: Path, path: str, quota_of: Callable[[Path], float | None]) -> Iterator[float]:
    """Quotas from a group up to the top. A container may see only the top, which is then its own group."""
    group = top / path.strip("/")
    for folder in (group, *group.parents):
        try:
            quota = quota_of(folder)
        except (OSError, ValueError, ZeroDivisionError):  # no such group here, or one without the controller
            quota = None
        if quota is not None and quota > 0:
            yield quota
        if folder == top:
            return


def _version_2(folder: Path) -> float | None:
    quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    return None if quota == "max" else int(quota) / int(period)


def _version_1(folder: Path) -> float | None:
    quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8")) for name in ("quota", "period"))
    return None if quota < 0 else quota / period
