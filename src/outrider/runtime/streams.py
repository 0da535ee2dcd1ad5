"""Standard streams that a shell has closed (``>&-``), which are None in Python."""

from __future__ import annotations

import errno
import io
import os
import sys


class ClosedOutput(io.TextIOWrapper):
    """Stands for a closed standard output: what is written to it is an error, as for any other program."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed; send it somewhere, for example with > FILE")


def open_closed_streams() -> None:
    """Put something in their place, or the next file that is opened would be standard output.

    Nothing comes from a closed input, and notes to a closed error output are lost, as with /dev/null. Answers are not
    lost: see ``ClosedOutput``.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  open to the end of the process, as all three
    if sys.stdout is None:
        sys.stdout = ClosedOutput(open(os.devnull, "wb"), encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
