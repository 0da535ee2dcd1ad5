"""What this package attaches to modules of a loaded model: typed records, one of a kind for each module.

They lie in the module itself, so that they are copied, pickled and freed with it; nothing of it is a parameter.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

_RECORDS = "_outrider_records"

R = TypeVar("R")


def attach(module: nn.Module, record: Any) -> None:
    """Attach a record; another one of its type is replaced."""
    module.__dict__.setdefault(_RECORDS, {})[type(record)] = record


def attached(module: nn.Module, kind: type[R]) -> R | None:
    """The record of this type, if the module has one."""
    found: R | None = module.__dict__.get(_RECORDS, {}).get(kind)
    return found


def expect(module: nn.Module, kind: type[R]) -> R:
    """The record of this type, which the module is known to have."""
    found: R = module.__dict__[_RECORDS][kind]
    return found


def detach(module: nn.Module, kind: type[Any]) -> None:
    """Take the record of this type away again."""
    del module.__dict__[_RECORDS][kind]
    if not module.__dict__[_RECORDS]:
        del module.__dict__[_RECORDS]
