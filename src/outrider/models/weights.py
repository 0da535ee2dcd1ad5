"""Whether a file of weights is whole, found out without reading it all."""

from __future__ import annotations

import json
from pathlib import Path

from outrider.errors import ModelCorrupt


def check_length(file: Path) -> None:
    """A safetensors file says in its header how long it is; a copy that was cut short is shorter."""
    size = file.stat().st_size
    with file.open("rb") as data:
        length = int.from_bytes(data.read(8), "little")
        try:
            header = json.loads(data.read(min(length, size)))
            ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        except (ValueError, AttributeError, TypeError, LookupError):
            raise ModelCorrupt(f"{file} is not a whole safetensors file (no header); copy it again") from None
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ModelCorrupt(f"{file} has {size} bytes where its header says {expected}; copy it again")
