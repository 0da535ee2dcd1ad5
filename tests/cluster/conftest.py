"""A real Ray of this machine for the tests of one file, and a model for its workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import library


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Two cores. Workers, of other programs that join it, too, find this source and the helpers of the tests where this
    process does, and do not touch the network."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    paths = os.pathsep.join(path for path in sys.path if path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("OMP_NUM_THREADS", "1")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library.save_llama(tmp_path_factory.mktemp("models") / "target"))
