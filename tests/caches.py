"""Caches of tests' own that need not compile what another has."""

from __future__ import annotations

import contextlib
from pathlib import Path


def link_compiled(there: Path, here: Path) -> None:
    """Compiled code of one cache is found in another, too: what it is for is in its name, and it takes minutes."""
    here.mkdir(parents=True, exist_ok=True)
    for entry in there.glob("compiled-*"):
        with contextlib.suppress(FileExistsError):
            (here / entry.name).symlink_to(entry.resolve())
