"""What runs a model: torch, or onnxruntime where it is installed, the device is a CPU and the family is known."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from outrider.errors import BadOption, require
from outrider.models.lean import FAMILIES

ENGINES = ("auto", "torch", "onnxruntime")
WEIGHTS = ("full", "int8")

_WORTH_FILES = 32e6
"""Bytes of weights from which on "auto" prepares files in the cache: a smaller model takes no time to speak of."""

_FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose angles depend on nothing but the position."""


@dataclass(frozen=True)
class Kernels:
    """What a model is loaded for: these settings change speed, memory and the last bits, not the function."""

    engine: str = "torch"
    weights: str = "full"  # full: as dtype says; int8: matrices in eight bits
    rows: int = 9  # rows of a run, about: what packed weights are laid out for
    release: bool = False  # for running only: weights are kept in the layout that is run, and in no other

    def __post_init__(self) -> None:
        require(self.engine in ENGINES, f"engine must be one of {', '.join(ENGINES)}, got {self.engine!r}")
        require(self.weights in WEIGHTS, f"weights must be one of {', '.join(WEIGHTS)}, got {self.weights!r}")


def cpu_identity() -> str:
    """A short name for this kind of CPU, by what kernels are chosen by."""
    telling = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = [platform.machine(), platform.processor(), *sorted({line for line in lines if line.startswith(telling)})]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def chosen_engine(kernels: Kernels, config: Any, device: torch.device, dtype: torch.dtype, size: float) -> str:
    """torch or onnxruntime, for a model of ``size`` bytes; an error where what was asked for cannot be had."""
    if device.type == "cuda" and kernels.engine != "onnxruntime":
        return "torch"  # eight bits, too: see eight_bits.py
    require(
        kernels.weights == "full" or kernels.engine != "torch",
        f"weights={kernels.weights!r} on a CPU is run by onnxruntime; leave engine='torch' out",
    )
    by_itself = kernels.engine == "auto" and kernels.weights == "full"
    if kernels.engine == "torch" or (by_itself and size < _WORTH_FILES):
        return "torch"
    obstacle = _obstacle(kernels, config, device, dtype)
    if obstacle is None:
        return "onnxruntime"
    if by_itself:
        return "torch"
    asked = "weights='int8'" if kernels.engine == "auto" else "engine='onnxruntime'"
    raise BadOption(f"{asked} cannot be used: {obstacle}")


def _obstacle(kernels: Kernels, config: Any, device: torch.device, dtype: torch.dtype) -> str | None:
    """None, or why onnxruntime cannot run this model, with what to do about it."""
    if device.type != "cpu":
        return f"it runs models on a CPU, and the device is {device}; leave it out or use device='cpu'"
    if config.model_type not in FAMILIES or getattr(config, "hidden_act", None) != "silu":
        return f"models of type {config.model_type!r} have no graph here; leave it out"
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotation not in _FIXED_ROTATIONS:
        return f"rotary positions of type {rotation!r} have no graph here; leave it out"
    if dtype != torch.float32 and kernels.weights == "full":
        return f"it computes in float32, not {str(dtype).removeprefix('torch.')}; use dtype='float32', or leave it out"
    if missing := [name for name in ("onnxruntime", "onnx") if find_spec(name) is None]:
        return f"{missing[0]} is not installed; run: pip install 'outrider[cpu]'"
    return None
