"""The safetensors files of a model's directory: which they are, what they hold, and whether they are whole.

All of it is read from the index and the files' headers, none from the weights.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from outrider.errors import ModelCorrupt, ModelNotFound

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"


def weight_files(folder: Path) -> list[Path]:
    """The files the index names; without one, model.safetensors; without that, every safetensors file there is.

    Other files may lie beside them: the same weights under other names (consolidated.safetensors), or an adapter.
    """
    if (folder / INDEX).is_file():
        named = read_json(folder / INDEX).get("weight_map")
        if not isinstance(named, dict) or not named:
            raise ModelCorrupt(f"{folder / INDEX} has no weight_map; get the model again")
        return [folder / name for name in sorted(set(map(str, named.values())))]
    whole = folder / WEIGHTS
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; ModelCorrupt where it is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelCorrupt(f"{file} cannot be read ({error}); get the model again") from error
    if not isinstance(content, dict):
        raise ModelCorrupt(f"{file} holds a {type(content).__name__}, not an object; get the model again")
    return content


def check_length(file: Path) -> None:
    """A safetensors file says in its header how long it is; a copy that was cut short is shorter."""
    length, header = _header(file)
    size, expected = file.stat().st_size, 8 + length + max((entry["data_offsets"][1] for entry in header), default=0)
    if size != expected:
        raise ModelCorrupt(f"{file} has {size} bytes where its header says {expected}; copy it again")


def sizes(folder: Path) -> list[int]:
    """Numbers in each tensor of a model."""
    return [math.prod(entry["shape"]) for file in weight_files(folder) for entry in _header(file)[1]]


def _header(file: Path) -> tuple[int, list[dict[str, Any]]]:
    """Bytes of a safetensors file's header, and what it says about each tensor."""
    try:
        size = file.stat().st_size
        with file.open("rb") as data:
            length = int.from_bytes(data.read(8), "little")
            header = json.loads(data.read(min(length, size)))
        entries = [entry for key, entry in header.items() if key != "__metadata__"]
        for entry in entries:
            int(entry["data_offsets"][1]), math.prod(entry["shape"])
    except FileNotFoundError:
        raise ModelNotFound(f"{file} is missing; copy it again") from None
    except OSError as error:
        raise ModelCorrupt(f"{file} cannot be read ({error.strerror})") from error
    except (ValueError, AttributeError, TypeError, LookupError):
        raise ModelCorrupt(f"{file} is not a whole safetensors file (no header); copy it again") from None
    return length, entries
