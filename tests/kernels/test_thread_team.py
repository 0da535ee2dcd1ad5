"""Threads that share the work of one run: every call has all of them, whatever became of the calls before it."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import pytest
import torch

pytest.importorskip("numba")

from outrider.kernels.numba.thread_team import Crew


def test_helpers_outlive_a_bad_call_and_an_interrupted_caller() -> None:
    """Catches a crew that shrinks unnoticed, and helpers that write into memory that has been given back."""
    crew = Crew(3)
    done = threading.Barrier(3, timeout=20)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            crew.run(lambda: 1 // 0, holding=None)
    crew.run(done.wait, holding=None)  # only with all three does this end
    held: Any = torch.zeros(3)
    watch, gate = weakref.ref(held), threading.Event()

    def interrupted() -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        gate.wait(20)

    with pytest.raises(KeyboardInterrupt):
        crew.run(interrupted, holding=held)
    del held
    assert watch() is not None, "helpers are still at it"
    gate.set()
    crew.run(done.wait, holding=None)
    gc.collect()
    assert watch() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_helpers_of_its_own() -> None:
    """Catches calls piling up for threads that a child process does not have."""
    crew = Crew(3)
    child = os.fork()
    if child == 0:
        try:
            crew.run(threading.Barrier(3, timeout=20).wait, holding=None)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
