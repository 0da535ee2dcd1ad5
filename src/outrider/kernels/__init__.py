"""A few Triton kernels for what transformers does in many small steps. Imported only where there is a GPU.

tests/plain_kernels.py says in plain torch what each computes; tests hold the two together.
"""

from __future__ import annotations

import os
from functools import cache

import torch

wanted = True
"""False switches every kernel off, for comparisons."""


@cache
def _installed() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def run_on(device: torch.device) -> bool:
    """Whether kernels can run there: on a GPU, or on a CPU under Triton's interpreter, which the tests use."""
    place = device.type == "cuda" or (device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1")
    return wanted and place and _installed()
