"""Finds what a CUDA graph cannot hold while a step runs: host-device syncs, and shapes that depend on values.

Looked for before a CUDA graph is captured, because a capture that fails half-way costs more than a look; and on a
CPU, where the same functions run, so that tests find it without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class NotCapturable(Exception):
    """A step with a host-device sync, or a copy from the host, cannot be replayed; run it eagerly."""


_SYNCS = ("_local_scalar_dense", "is_nonzero", "equal.default")
_SIZED_BY_VALUES = ("nonzero", "masked_select", "unique")
_CONSTANTS = ("lift_fresh",)


class CaptureCheck(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises NotCapturable at the first host-device sync; with ``constants``, at values sent to ``device``, too."""

    def __init__(self, device: torch.device, constants: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.constants = device, constants

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if self._here(args):
            if any(word in name for word in _SYNCS):
                raise NotCapturable(f"it waits for a value of the device ({name})")
            if any(word in name for word in _SIZED_BY_VALUES) or _boolean_index(name, args):
                raise NotCapturable(f"a shape in it depends on values ({name})")
        if self.constants and any(word in name for word in _CONSTANTS):
            raise NotCapturable(f"it sends a constant to the device ({name})")
        return func(*args, **(kwargs or {}))

    def _here(self, args: Any) -> bool:
        return any(isinstance(a, Tensor) and a.device.type == self.device.type for a in args)


def _boolean_index(name: str, args: Any) -> bool:
    if not name.startswith(("aten.index.", "aten.index_put")) or len(args) < 2:
        return False
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1] or ())
