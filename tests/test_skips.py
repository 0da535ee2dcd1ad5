"""A skip that this machine has no cause for is a test that nobody runs: where asked, it fails the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cpus
from expected_skips import expected
from outrider.runtime import cpu

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("reason", "option", "status"),
    [("no time today", "--strict-skips", 1), ("run it with -m slow", "--strict-skips", 0), ("no time today", "-q", 0)],
)
def test_what_a_skip_does_to_a_run(reason: str, option: str, status: int, tmp_path: Path) -> None:
    """261 tests were skipped on a fresh machine, and nobody could say whether they should have been."""
    for file in ("conftest.py", "caches.py", "expected_skips.py"):
        shutil.copy(HERE / file, tmp_path)
    (tmp_path / "test_it.py").write_text(f"import pytest\n\ndef test_it():\n    pytest.skip({reason!r})\n")
    left_out = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *left_out, "--durations=9", option, str(tmp_path)]
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=kept)
    assert done.returncode == status, done.stdout + done.stderr
    listed = done.stdout.rfind(f"test_it.py::test_it: Skipped: {reason}")
    assert (listed > done.stdout.find("slowest")) == bool(status), "behind all else: a log that is cut keeps its end"


def test_a_cpu_is_no_excuse_where_it_can() -> None:
    reason = "Skipped: this CPU has no products of bytes"
    with cpu.using(cpus.A72):
        assert expected(reason)
    with cpu.using(cpus.AMX):
        assert not expected(reason)
    assert not expected("Skipped: could not import 'numba'"), "it is among what the tests install"
