"""Runs each engine of a comparison in a process of its own, which is suspended (SIGSTOP) while others are timed.

Only one of them may run at a time: threads of an idle engine can spin, and two engines on the same cores would measure
each other. So a process is stopped between its requests. A stopped process cannot notice that its parent has died, but
the system wakes and ends it then, since its process group has lost the last one who could; a running one looks itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import outrider
from outrider.errors import BadOption, OutriderError, require
from outrider.runtime.threads import ADDED

MODULES = {
    "outrider": "outrider", "transformers": "transformers", "vllm": "vllm", "openvino": "openvino_genai",
    "llamacpp": "xllamacpp",
}  # fmt: skip
"""Engines, and what must be importable for each."""

DTYPES = ("float32", "bfloat16", "float16")

SEPARATE = ("vllm", "openvino")  # engines whose way of decoding is fixed when they are loaded

WORKER = Path(__file__).with_name("worker.py")


class PeerFailed(OutriderError):
    """An engine that is compared with could not do what it was asked."""


@dataclass(frozen=True)
class Contender:
    """An engine as it takes part: with which Python, on which model, in which precision, decoding in which ways."""

    engine: str
    dtype: str  # auto: the engine's own choice, for ours
    target: str
    ways: tuple[str, ...]
    draft: str | None = None
    python: str = sys.executable
    shown: str = ""  # what to call it, where the engine alone says too little
    obstacle: str = ""  # why it cannot take part

    @property
    def name(self) -> str:
        return self.shown or self.engine


def engine_and_dtype(text: str) -> tuple[str, str | None]:
    """``vllm`` or ``vllm:bfloat16``."""
    engine, _, dtype = text.strip().partition(":")
    require(engine in MODULES, f"engine {engine!r} is not known; known: {', '.join(MODULES)}")
    own = "engine 'llamacpp' runs weights as its file has them; name another file with --peer-model llamacpp=FILE.gguf"
    require(engine != "llamacpp" or not dtype, own)
    known = (*DTYPES, "int8", "int4") if engine == "outrider" else DTYPES
    require(not dtype or dtype in known, f"engine {text!r}: the dtype must be one of {', '.join(known)}")
    return engine, dtype or None


def by_engine(pairs: list[str], option: str) -> dict[str, str]:
    """``["vllm=/some/python"]`` as a mapping."""
    found = {}
    for pair in pairs:
        engine, sign, value = pair.partition("=")
        require(bool(sign and value), f"{option} {pair!r}: write ENGINE=PATH")
        require(engine in MODULES, f"{option} {pair!r}: the engine must be one of {', '.join(MODULES)}")
        if not Path(value).exists():
            raise BadOption(f"{option} {pair!r}: {value} does not exist")
        found[engine] = value
    return found


def installed(pythons: Mapping[str, str]) -> list[str]:
    """Engines that can be tried: those with a Python of their own, and those that this one can import."""
    return [name for name, module in MODULES.items() if name in pythons or find_spec(module) is not None]


class Peer:
    """An engine in its process, which runs while ``ask`` waits for an answer and is suspended otherwise."""

    def __init__(self, contender: Contender, threads: int) -> None:
        self.contender = contender
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 until the end
        group = None if os.name == "nt" else 0  # its own: Ctrl-C is not for it, and a stop is for all of it
        self.process = subprocess.Popen(
            [contender.python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            encoding="utf-8", env=worker_environment(threads, contender), process_group=group,
        )  # fmt: skip
        self.answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The engine runs for this one request only."""
        assert self.process.stdin is not None
        self._signal("SIGCONT")
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=timeout)
        except queue.Empty:
            raise PeerFailed(f"{self.contender.name} gave no answer in {timeout:.0f} s") from None
        except OSError:
            line = ""
        finally:
            self._signal("SIGSTOP")
        if not line:
            raise PeerFailed(f"{self.contender.name} ended unexpectedly: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"{self.contender.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-500:] or "no message"

    def _signal(self, name: str) -> None:
        if hasattr(signal, name):  # elsewhere an engine waits on its input, and that must do
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, getattr(signal, name))

    def end(self) -> None:
        self._signal("SIGKILL")
        self.process.kill()
        self.process.wait()
        self.log.close()

    def peak_bytes(self) -> int | None:
        """Memory that the engine's main process had at most; None where the system does not tell."""
        try:
            told = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
            return 1024 * int(told.partition("VmHWM:")[2].split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def cpu_seconds(self) -> float:
        """Time on a core so far, of the engine's main process."""
        return process_seconds(self.process.pid)


def process_seconds(pid: int) -> float:
    """User and system time of a process; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def worker_environment(threads: int, contender: Contender) -> dict[str, str]:
    """The user's own settings and one number of threads: what Outrider sets for itself is not for its peers."""
    kept = {name: value for name, value in os.environ.items() if name not in ADDED}
    kept["OMP_NUM_THREADS"] = str(threads)
    if contender.engine == "outrider":  # the very code that is running here
        home = str(Path(outrider.__file__).parents[1])
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [home, kept.get("PYTHONPATH")]))
    elif contender.python != sys.executable:
        kept.pop("PYTHONPATH", None)  # it is for this Python
    return kept
