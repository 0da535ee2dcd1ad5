"""What runs a model: torch, or on a CPU numba or onnxruntime, where installed and the family is known."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from outrider import cpu
from outrider.errors import BadOption, require
from outrider.models.families import LLAMA_LIKE
from outrider.models.sizes import Sizes

ENGINES = ("auto", "numba", "onnxruntime", "torch")
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
    if platform.system() == "Darwin":
        named = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        lines = [f"model name {named.stdout.strip()}"]
    facts = [platform.machine(), platform.processor(), *sorted({line for line in lines if line.startswith(telling)})]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


@cache
def computes_in_half() -> bool:
    """Whether this CPU multiplies vectors of float16 by itself, in what numba compiles for it."""
    if not cpu.computes_in_half():
        return False
    try:
        from llvmlite.binding import get_host_cpu_name
    except ImportError:
        return False
    return bool(get_host_cpu_name() != "generic")  # of a CPU it does not know the compiler knows few instructions


def numba_computes_in_half(dtype: torch.dtype, settled: bool) -> bool:
    """Whether numba's products are to be in float16: where it was asked for, and by itself where the CPU can."""
    return dtype == torch.float16 if settled else computes_in_half()


def chosen_engine(
    kernels: Kernels, config: Any, device: torch.device, dtype: torch.dtype, size: float, settled: bool = True
) -> str:
    """numba, onnxruntime or torch, for a model of ``size`` bytes; an error where what was asked for cannot be had.

    ``settled``: whether the user asked for this dtype, or it is only what torch would use.
    """
    if device.type == "cuda" and kernels.engine in ("auto", "torch"):
        return "torch"  # eight bits, too: see eight_bits.py
    narrow = kernels.weights == "int8"
    require(
        not narrow or kernels.engine in ("auto", "onnxruntime"),
        f"weights={kernels.weights!r} on a CPU is run by onnxruntime; leave engine={kernels.engine!r} out",
    )
    by_itself = kernels.engine == "auto" and not narrow
    if kernels.engine == "torch" or (by_itself and size < _WORTH_FILES):
        return "torch"
    wanted = dtype if settled else torch.float32
    obstacles = {
        "numba": _general_obstacle(config, device) or _numba_obstacle(config, wanted),
        "onnxruntime": _general_obstacle(config, device) or _onnx_obstacle(torch.float32 if narrow else dtype),
    }
    if by_itself:
        return next((engine for engine, obstacle in obstacles.items() if obstacle is None), "torch")
    engine = "onnxruntime" if narrow else kernels.engine
    if obstacles[engine] is None:
        return engine
    asked = "weights='int8'" if kernels.engine == "auto" else f"engine={engine!r}"
    raise BadOption(f"{asked} cannot be used: {obstacles[engine]}")


def _general_obstacle(config: Any, device: torch.device) -> str | None:
    """None, or why no engine but torch can run this model, with what to do about it."""
    if device.type != "cpu":
        return f"it runs models on a CPU, and the device is {device}; leave it out or use device='cpu'"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantised; leave it out"
    if config.model_type not in LLAMA_LIKE or getattr(config, "hidden_act", None) != "silu":
        return f"models of type {config.model_type!r} have no layers here; leave it out"
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotation not in _FIXED_ROTATIONS:
        return f"rotary positions of type {rotation!r} have no layers here; leave it out"
    return None


def _onnx_obstacle(dtype: torch.dtype) -> str | None:
    return _not_float32(dtype) or _missing("onnxruntime", "onnx")


def _numba_obstacle(config: Any, dtype: torch.dtype) -> str | None:
    sizes = Sizes.of(config)
    if saved := _not_bfloat16(config):
        return saved
    if sizes.hidden % 16 or sizes.inner % 16 or sizes.heads * sizes.depth % 4 or sizes.depth % 2:
        return f"it runs layers of a multiple of 16, not of {sizes.hidden} and {sizes.inner}; leave it out"
    return _missing("numba") or _beyond_numba(dtype) or _numba_unusable()


def _beyond_numba(dtype: torch.dtype) -> str | None:
    if dtype != torch.float16:
        return _not_float32(dtype)
    if computes_in_half():
        return None
    return "this CPU does not compute in float16; use dtype='float32', or leave it out"


@cache
def _numba_unusable() -> str | None:
    try:
        from llvmlite.binding import get_host_cpu_features
        from numba import njit  # noqa: F401  it looks at the numpy it finds, and may refuse it
    except ImportError as error:
        return f"numba cannot be imported ({error}); install versions of numba and numpy that fit, or leave it out"
    if platform.machine() in ("x86_64", "AMD64") and not get_host_cpu_features().get("fma"):
        return "this CPU has no fused multiplication and addition; leave it out"
    return None


def _not_bfloat16(config: Any) -> str | None:
    saved = str(getattr(config, "dtype", None)).removeprefix("torch.")
    if saved == "bfloat16":
        return None
    return f"it reads weights that were saved in bfloat16, and these are in {saved}; leave it out"


def _not_float32(dtype: torch.dtype) -> str | None:
    if dtype == torch.float32:
        return None
    return f"it computes in float32, not {str(dtype).removeprefix('torch.')}; use dtype='float32', or leave it out"


def _missing(*packages: str) -> str | None:
    absent = [name for name in packages if find_spec(name) is None]
    return f"{absent[0]} is not installed; in a checkout of Outrider run: pip install '.[cpu]'" if absent else None
