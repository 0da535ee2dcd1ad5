"""What a plan holds for: the files of its target, the machine, and which of its drafts other programs have, too."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from outrider.core.protocols import Drafter
from outrider.drafters import Copying, ModelDrafter
from outrider.drafters.head import CONFIG
from outrider.models.hub import manifest, names, pairs
from outrider.models.hub.loading import choose_device
from outrider.models.hub.safetensors_files import weight_files
from outrider.runtime import cpu

_SAMPLE = 1 << 16


def files_fingerprint(target: str) -> str | None:
    """A short name for a model's config and weights, wherever they lie; None for a hub id, which names them itself.

    Of each weight file its size and 64 KiB from its middle count: reading all of it would take longer than loading.
    """
    folder = names.resolve(target)
    if isinstance(folder, str):
        return None
    told = hashlib.sha256((folder / "config.json").read_bytes())
    packed = manifest.packed(folder)
    if packed is not None:
        told.update(packed.sha256.encode())
    for file in () if packed is not None else weight_files(folder):
        size = file.stat().st_size
        with file.open("rb") as opened:
            opened.seek(max(0, size // 2 - _SAMPLE // 2))
            told.update(f"{file.name} {size}".encode() + opened.read(_SAMPLE))
    return told.hexdigest()[:16]


def device_name(device: str) -> str:
    """What the option ``device`` means here: the name of the GPU or of the CPU."""
    chosen = torch.device(choose_device(device))
    return torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else cpu.facts().name


def described(draft: str, drafter: Drafter, target: str) -> dict[str, Any]:
    """A drafter in a plan file: its name, and its kind where other programs have that, too."""
    told: dict[str, Any] = {"name": drafter.name, "kind": "other"}
    if isinstance(drafter, Copying):
        return told | {"kind": "copy", "shortest": drafter.shortest, "longest": drafter.longest}
    if isinstance(drafter, ModelDrafter) and not (Path(draft) / CONFIG).is_file():
        return told | {"kind": "model", "model": str(pairs.draft_of(target if draft == "auto" else draft) or draft)}
    return told
