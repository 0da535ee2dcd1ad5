"""Whether Triton kernels can run on a device, and whether they were found to agree with plain torch there.

tests/support/plain_kernels.py says in plain torch what each computes; tests hold the two together.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
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


PROVEN: dict[tuple[str, torch.device], bool] = {}


def proven(name: str, device: torch.device, trial: Callable[[], bool]) -> bool:
    """Whether kernels that stand for plain functions give what those give on this very device: tried out once.

    For what plain functions can do as well: a compiler or driver that disagrees costs speed then, not the request.
    """
    if (name, device) not in PROVEN:
        try:
            good, reason = trial(), "its results differ from the plain functions'"
        except Exception as error:
            good, reason = False, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        PROVEN[name, device] = good
        if not good:
            warnings.warn(f"the kernels for {name} are not used on {device}: {reason}", stacklevel=3)
    return PROVEN[name, device]
