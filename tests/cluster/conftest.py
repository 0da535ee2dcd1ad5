"""A real Ray of this machine for the tests of one file, and a model for its workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import library

# A machine that others use stalls for seconds. A raylet that missed its health checks would be declared dead, and Ray
# then ends the process that joined it: the tests themselves, without a word.
PATIENCE = {
    "RAY_health_check_initial_delay_ms": "60000",
    "RAY_health_check_timeout_ms": "120000",
    "RAY_health_check_failure_threshold": "100",
    "RAY_memory_monitor_refresh_ms": "0",  # no worker is ended for the memory that others use
    "RAY_worker_niceness": "0",  # else everything else goes first
}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Two cores. Workers, of other programs that join it, too, find this source and the helpers of the tests where this
    process does, and do not touch the network."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    paths = os.pathsep.join(path for path in sys.path if path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("OMP_NUM_THREADS", "1")
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        ray.init(num_cpus=2, object_store_memory=128 << 20, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library.save_llama(tmp_path_factory.mktemp("models") / "target"))
