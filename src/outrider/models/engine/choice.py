"""Chooses the engine of a model: torch, or on a CPU the first of ``BACKENDS`` that is installed and can run it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from outrider.errors import BadOption, require
from outrider.models.engine.backends import BACKENDS, QUANTISED, Asked, Backend
from outrider.models.engine.known_options import unknown_option
from outrider.models.engine.t5_sizes import t5_like
from outrider.models.positions import Positions
from outrider.models.settings import setting
from outrider.models.transformers.families import layer_design

WEIGHTS = ("full", *QUANTISED)
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16")

REMOVED = "engine='onnxruntime' was removed; leave it out, or use weights='int8' for weights of eight bits"

WORTH_FILES = 32e6
"""Bytes of weights from which on "auto" prepares files in the cache: smaller models start faster without."""

WORTH_FILES_ENCODER_DECODER = 1e6
"""The same of encoder-decoder models: their many small operations are what torch is slow at, the smaller the slower."""


@dataclass(frozen=True)
class Kernels:
    """How a loaded model is run: settings that change speed, memory and the last bits of logits, nothing else."""

    engine: str = "torch"
    weights: str = "full"  # full: as they were saved, in dtype; int8, int4: matrices quantised to eight or four bits
    rows: int = 9  # rows of a run, about: what packed weights are laid out for
    release: bool = False  # for running only: weights are kept in the layout that is run, and in no other
    kv_cache_dtype: str = "auto"  # of keys and values, by the numba engine
    max_length: int | None = None  # of texts, prompts included: see positions.py

    def __post_init__(self) -> None:
        require(self.engine != "onnxruntime", REMOVED)
        engines = ("auto", *BACKENDS, "torch")
        require(self.engine in engines, f"engine must be one of {', '.join(engines)}, got {self.engine!r}")
        require(self.weights in WEIGHTS, f"weights must be one of {', '.join(WEIGHTS)}, got {self.weights!r}")
        dtypes = ", ".join(KV_CACHE_DTYPES)
        known = self.kv_cache_dtype in KV_CACHE_DTYPES
        require(known, f"kv_cache_dtype must be one of {dtypes}, got {self.kv_cache_dtype!r}")


def chosen_engine(
    kernels: Kernels,
    config: Any,
    device: torch.device,
    dtype: torch.dtype,
    size: float,
    settled: bool = True,
    tried: bool = True,
) -> str:
    """The name of an entry of ``BACKENDS``, or torch, for a model of ``size`` bytes; an error where it cannot be had.

    ``settled``: whether the user asked for this dtype, or it is only what torch would use. An engine that was asked
    for by name then computes in what it can.
    ``tried``: whether an engine is imported to see that it works here, which takes a while; else it is enough that its
    packages are installed.
    """
    if device.type == "cuda" and kernels.engine in ("auto", "torch"):
        require(kernels.weights != "int4", "weights 'int4' are run on a CPU only; use 'int8' or device='cpu'")
        return "torch"  # eight bits, too: see int8_gpu.py
    full = kernels.weights == "full"
    able = [name for name, backend in BACKENDS.items() if full or kernels.weights in backend.quantises]
    require(
        full or kernels.engine in ("auto", *able),
        f"weights {kernels.weights!r} on a CPU are run by {' or '.join(able)}; leave the engine {kernels.engine!r} out",
    )
    by_itself = kernels.engine == "auto" and full
    worth = WORTH_FILES_ENCODER_DECODER if t5_like(config) else WORTH_FILES
    if kernels.engine == "torch" or (by_itself and size < worth):
        return "torch"
    asked = Asked(config, dtype, settled, kernels.weights, max_length=kernels.max_length)
    tried_in_turn = able if kernels.engine == "auto" else [kernels.engine]
    obstacles: list[str] = []
    for engine in tried_in_turn:
        obstacle = _obstacle(engine, asked, device, tried)
        if obstacle is None:
            return engine
        obstacles.append(obstacle)
    if by_itself:
        return "torch"
    option = f"weights {kernels.weights!r}" if kernels.engine == "auto" else f"engine {kernels.engine!r}"
    raise BadOption(f"{option} cannot be used: {obstacles[0]}")


def _obstacle(engine: str, asked: Asked, device: torch.device, tried: bool) -> str | None:
    """None, or why this engine cannot do what is asked, with what to do about it."""
    backend = BACKENDS[engine]
    return (
        _general_obstacle(asked, device, backend)
        or backend.obstacle(asked)
        or _missing(*backend.packages)
        or (backend.broken() if tried else None)
    )


def _general_obstacle(asked: Asked, device: torch.device, backend: Backend) -> str | None:
    """None, or why the engine cannot run this model, whatever its layers compute, with what to do about it."""
    config = asked.config
    if device.type != "cpu":
        return f"it runs models on a CPU, and the device is {device}; leave it out or choose the device cpu"
    if setting(config, "quantization_config") is not None:
        return "its weights are quantised; leave it out"
    if t5_like(config):
        return None
    design = layer_design(config)
    if design is None or not (backend.designs or design.is_llamas):
        return f"models of type {config.model_type!r} have no layers here; leave it out"
    if Positions.of(config, asked.max_length).long and not backend.max_lengths:
        return f"it has positions for shorter texts only than a max_length of {asked.max_length}; lower it"
    return unknown_option(config, design)


def _missing(*packages: str) -> str | None:
    absent = [name for name in packages if find_spec(name) is None]
    return f"{absent[0]} is not installed; in a checkout of Outrider run: pip install '.[cpu]'" if absent else None
