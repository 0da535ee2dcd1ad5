"""The cache directory: where models, prepared weights and compiled code are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """``$OUTRIDER_CACHE``, else ``$XDG_CACHE_HOME/outrider``, else ``~/.cache/outrider``."""
    if own := os.environ.get("OUTRIDER_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser().absolute() if base else Path.home() / ".cache") / "outrider"
