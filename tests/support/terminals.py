"""``outrider`` in a process on a pseudo-terminal: what it writes there, and keys pressed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SLOW = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where the tests run in a shell's background
os.close(os.open(os.ttyname(0), os.O_RDWR))  # a session's first terminal becomes the one that Ctrl-C comes from
from outrider import LLM
from outrider.cli.main import main
real = LLM.stream
def stream(self, *given, **options):
    for number, chunk in enumerate(real(self, *given, **options)):
        yield chunk
        if number == 0:
            sys.stderr.write("<ONE>")
            while True:
                time.sleep(0.05)
if "--slow" in sys.argv:
    sys.argv.remove("--slow")
    LLM.stream = stream
main()
"""


class Terminal:
    """A process on a terminal of its own: what it writes, and keys."""

    def __init__(self, *words: str, **settings: str) -> None:
        """``settings`` are environment variables; one that is "" is not set."""
        self.seen = self.all = ""  # what has come and was not waited for yet, and everything
        self.file, theirs = pty.openpty()
        command = [sys.executable, "-c", SLOW, *words]
        given = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "200", **settings}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={name: value for name, value in given.items() if value},
        )  # fmt: skip
        os.close(theirs)

    def wait_for(self, text: str, pressing: str = "") -> None:
        """Until the text has come, after everything waited for before."""
        for _ in self._waiting(pressing):
            if text in self.seen:
                self.seen = self.seen.partition(text)[2]
                return

    def code(self, pressing: str) -> int:
        """The exit code of a process that is about to leave."""
        for _ in self._waiting(pressing):
            if self.process.poll() is not None:
                break
        return self.process.returncode

    def _waiting(self, pressing: str) -> Iterator[None]:
        """Read on. Keys are pressed again now and then: Python misses a Ctrl-C just before it begins to read."""
        for tick in range(1200):
            if pressing and tick % 100 == 0:
                with suppress(OSError):  # the terminal closes with its process
                    self.press(pressing)
            if select.select([self.file], [], [], 0.1)[0]:
                try:
                    new = os.read(self.file, 4096).decode(errors="replace")
                    self.seen, self.all = self.seen + new, self.all + new
                except OSError:  # closed by a process that has not quite ended: nothing to wait for but time
                    time.sleep(0.1)
            yield
        raise AssertionError(self.seen)

    def press(self, keys: str) -> None:
        os.write(self.file, keys.encode())


@contextmanager
def terminal(*words: str, **settings: str) -> Iterator[Terminal]:
    shown = Terminal(*words, **settings)
    try:
        yield shown
    finally:
        os.close(shown.file)
        shown.process.kill()  # if the test failed
        shown.process.wait()
