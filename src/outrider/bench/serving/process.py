"""A server for a measurement, in a process of its own: started, watched and stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.serving.client import Address
from outrider.errors import BadOption
from outrider.runtime import timer

IDLE = 10.0
"""Seconds for rows to be free once their clients have gone."""

END = 60.0
"""Seconds for a server to end after SIGTERM."""

HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting")
"""Gauges at /metrics: ours, and vLLM's."""


@dataclass(frozen=True)
class ServerPlace:
    """The server to measure: one to be started, or one that is there."""

    target: str
    options: Sequence[str] = ()  # of the `outrider serve` that is started
    url: str | None = None  # of one that is there
    pid: int | None = None  # its process
    key: str | None = None


@contextmanager
def reached(place: ServerPlace, say: Callable[[str], object]) -> Iterator[tuple[Address, int | None]]:
    """Where to send requests, and the server's process where it is known."""
    if place.url is not None:
        yield Address(place.url.rstrip("/").removesuffix("/v1"), place.key), place.pid
        return
    with started(place.target, place.options, say) as (url, pid):
        yield Address(url, place.key), pid


@contextmanager
def started(target: str, options: Sequence[str], say: Callable[[str], object]) -> Iterator[tuple[str, int]]:
    """Run ``outrider serve`` -> its URL and process id. A session of its own: Ctrl-C is for the measurement.

    SIGTERM to this process counts as Ctrl-C until the server has ended: it would go on alone.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = [sys.executable, "-m", "outrider", "serve", target, "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    lines: deque[str] = deque(maxlen=8)
    try:
        for line in process.stderr:
            lines.append(line.strip())
            if line.startswith("http"):
                break
            say(line.strip())
        else:
            raise BadOption(f"`outrider serve {target}` did not start: {' '.join(lines)}")
        # Whatever it says later is read, too: a full pipe would stop it.
        threading.Thread(target=lambda: deque(process.stderr or (), maxlen=1), daemon=True).start()
        yield line.split()[0], process.pid
    finally:
        process.terminate()
        try:
            process.wait(END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        signal.signal(signal.SIGTERM, before)


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process and of those it has started; None where the system does not tell."""
    running = list(_processes())
    parents = {child: parent for child, parent, _ in running}

    def below(child: int) -> bool:
        while child not in (pid, 0):
            child = parents.get(child, 0)
        return child == pid

    return sum(size for child, _, size in running if below(child)) if pid in parents else None


def _processes() -> Iterator[tuple[int, int, int]]:
    """Process, parent and resident bytes of each."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":", 1) for line in (folder / "status").read_text("utf-8").splitlines())
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        yield int(folder.name), int(fields["PPid"]), 1024 * int(fields.get("VmRSS", "0 kB").split()[0])


def requests_held(address: Address) -> int | None:
    """Requests that run or wait on the server, by its metrics; None where it has none."""
    try:
        lines = address.get("/metrics").splitlines()
    except BadOption:
        return None
    found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(HELD)]
    return int(sum(found)) if found else None


def held_when_idle(address: Address) -> int | None:
    """Requests that the server still holds when no client is left, after a moment to notice it."""
    end = timer.now() + IDLE
    while (held := requests_held(address)) and timer.now() < end:
        time.sleep(0.1)
    return held
