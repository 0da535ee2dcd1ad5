"""What runs a model: torch, or on a CPU numba or onnxruntime, where installed and the family is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from outrider.errors import BadOption, require
from outrider.models.engine.sizes import Sizes
from outrider.models.settings import setting
from outrider.models.transformers.families import LLAMA_LIKE
from outrider.runtime import cpu

ENGINES = ("auto", "numba", "onnxruntime", "torch")
WEIGHTS = ("full", "int8")

WORTH_FILES = 32e6
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


def numba_computes_in_half(dtype: torch.dtype, settled: bool) -> bool:
    """Whether numba's products are to be in float16: where it was asked for, and by itself where the CPU can."""
    return dtype == torch.float16 if settled else cpu.facts().computes_in_half


def chosen_engine(
    kernels: Kernels,
    config: Any,
    device: torch.device,
    dtype: torch.dtype,
    size: float,
    settled: bool = True,
    tried: bool = True,
) -> str:
    """numba, onnxruntime or torch, for a model of ``size`` bytes; an error where what was asked for cannot be had.

    ``settled``: whether the user asked for this dtype, or it is only what torch would use. An engine that was asked
    for by name then computes in what it can.
    ``tried``: whether numba is imported to see that it works here, which takes a while; else it is enough that it is
    installed.
    """
    if device.type == "cuda" and kernels.engine in ("auto", "torch"):
        return "torch"  # eight bits, too: see eight_bits.py
    narrow = kernels.weights == "int8"
    require(
        not narrow or kernels.engine in ("auto", "onnxruntime"),
        f"weights {kernels.weights!r} on a CPU are run by onnxruntime; leave the engine {kernels.engine!r} out",
    )
    by_itself = kernels.engine == "auto" and not narrow
    if kernels.engine == "torch" or (by_itself and size < WORTH_FILES):
        return "torch"
    for_numba = dtype if settled else torch.float32
    # By itself onnxruntime, which reads four bytes of each weight, leaves bfloat16 to torch.
    for_onnx = dtype if by_itself or (settled and not narrow) else torch.float32
    obstacles = {
        "numba": _general_obstacle(config, device) or _numba_obstacle(config, for_numba, tried),
        "onnxruntime": _general_obstacle(config, device) or _onnx_obstacle(for_onnx),
    }
    if by_itself:
        return next((engine for engine, obstacle in obstacles.items() if obstacle is None), "torch")
    engine = "onnxruntime" if narrow else kernels.engine
    if obstacles[engine] is None:
        return engine
    asked = "weights 'int8'" if kernels.engine == "auto" else f"engine {engine!r}"
    raise BadOption(f"{asked} cannot be used: {obstacles[engine]}")


def _general_obstacle(config: Any, device: torch.device) -> str | None:
    """None, or why no engine but torch can run this model, with what to do about it."""
    if device.type != "cpu":
        return f"it runs models on a CPU, and the device is {device}; leave it out or choose the device cpu"
    if setting(config, "quantization_config") is not None:
        return "its weights are quantised; leave it out"
    if config.model_type not in LLAMA_LIKE or setting(config, "hidden_act") != "silu":
        return f"models of type {config.model_type!r} have no layers here; leave it out"
    rotation = (setting(config, "rope_parameters") or {}).get("rope_type", "default")
    if rotation not in _FIXED_ROTATIONS:
        return f"rotary positions of type {rotation!r} have no layers here; leave it out"
    return None


def _onnx_obstacle(dtype: torch.dtype) -> str | None:
    return _not_float32(dtype) or _missing("onnxruntime", "onnx")


def _numba_obstacle(config: Any, dtype: torch.dtype, tried: bool) -> str | None:
    sizes = Sizes.of(config)
    if saved := _not_bfloat16(config):
        return saved
    if sizes.hidden % 16 or sizes.inner % 16 or sizes.heads * sizes.depth % 4 or sizes.depth % 2:
        return f"it runs layers of a multiple of 16, not of {sizes.hidden} and {sizes.inner}; leave it out"
    return _missing("numba") or _beyond_numba(dtype) or (_numba_unusable() if tried else None)


def _beyond_numba(dtype: torch.dtype) -> str | None:
    if dtype != torch.float16:
        return _not_float32(dtype)
    if cpu.facts().computes_in_half:
        return None
    return "this CPU does not compute in float16; choose the dtype float32, or leave the dtype out"


def _numba_unusable() -> str | None:
    if error := import_error():
        return f"numba cannot be imported ({error}); install versions of numba and numpy that fit, or leave it out"
    if not cpu.facts().fuses_multiplication:
        return "this CPU has no fused multiplication and addition; leave it out"
    return None


@cache
def import_error() -> str | None:
    try:
        from numba import njit  # noqa: F401  it looks at the numpy it finds, and may refuse it
    except ImportError as error:
        return str(error)
    return None


def _not_bfloat16(config: Any) -> str | None:
    saved = str(setting(config, "dtype")).removeprefix("torch.")
    if saved == "bfloat16":
        return None
    return f"it reads weights that were saved in bfloat16, and these are in {saved}; leave it out"


def _not_float32(dtype: torch.dtype) -> str | None:
    if dtype == torch.float32:
        return None
    name = str(dtype).removeprefix("torch.")
    return f"it computes in float32, not {name}; choose the dtype float32, or leave the dtype out"


def _missing(*packages: str) -> str | None:
    absent = [name for name in packages if find_spec(name) is None]
    return f"{absent[0]} is not installed; in a checkout of Outrider run: pip install '.[cpu]'" if absent else None
