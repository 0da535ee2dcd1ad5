"""llama.cpp in a comparison: the GGUF file that it reads, and the ways of decoding that it takes part with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from outrider.bench.peers import Contender
from outrider.models.hub import manifest
from outrider.models.hub.gguf import read_header

WAYS = ("plain", "lookup", "ngram-map", "ngram-cache")
"""Without a draft model. The last three copy from the text so far: see ``LlamaCpp`` in ``worker_engines.py``."""

NO_FILE = "reads GGUF files, and the target is none; name one with --peer-model llamacpp=FILE.gguf, or leave it out"

_FULL = {0: "float32", 1: "float16", 32: "bfloat16"}
"""GGUF's numbers for files of weights that are not packed."""


def gguf_file(name: str, place: str | None) -> str | None:
    """The GGUF file behind a model's name, kept or converted at ``place``; None where there is none."""
    if name.endswith(".gguf"):
        return str(Path(name).expanduser())
    packed = None if place is None else manifest.packed(Path(place))
    return None if packed is None else str(packed.require())


@cache
def weights_of(file: str) -> tuple[str, float]:
    """What most weights of a GGUF file are in, and bytes a weight on average."""
    header = read_header(Path(file))
    form = header.weights or _FULL.get(header.metadata.get("general.file_type", -1), "GGUF")
    return form, Path(file).stat().st_size / header.parameters


def contenders(file: str | None, draft: str | None, **common: Any) -> list[Contender]:
    """A process for each way, all on one file, which they share in memory."""
    ways = WAYS if draft is None else (*WAYS, "assisted")
    if file is None:
        return [Contender("llamacpp", "GGUF", "", ways, obstacle=NO_FILE, **common)]
    form, _ = weights_of(file)
    return [Contender("llamacpp", form, file, (way,), draft, **common) for way in ways]
