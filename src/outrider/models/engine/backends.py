"""The engines of the package itself, which run Llama-like and T5-like models on a CPU: one record each, in one table.

Whoever offers, chooses, prepares or opens an engine reads ``BACKENDS``. A new engine is a new entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from outrider.errors import require
from outrider.models.engine.prepared import Layout, Prepared, PreparedEngine
from outrider.models.engine.sizes import Sizes
from outrider.models.engine.t5_sizes import T5Sizes, t5_like
from outrider.models.engine.weight_files import FLOATS
from outrider.models.settings import saved_dtype
from outrider.runtime import cpu

QUANTISED = ("int8", "int4")
"""What matrices can be quantised to when a model is prepared."""


@dataclass(frozen=True)
class Asked:
    """A model, and how it is to be run."""

    config: Any
    dtype: torch.dtype  # to compute in
    settled: bool = True  # whether the user asked for this dtype; False: it is only what torch would use
    weights: str = "full"  # or what matrices are to be quantised to: int8, int4
    packed: str | None = None  # the format of a GGUF file's weights, where they are to be run as they are
    max_length: int | None = None  # of texts, prompts included; None: what the model is for


@dataclass(frozen=True)
class Backend:
    """An engine: what it can run, how its weights lie on the disk, and what opens them.

    Functions import what only their engine needs when they are called. An obstacle is a sentence for the user: why
    the engine cannot be used, and what to do about it.
    """

    weights: Callable[[Asked], str]  # the format of its weights for what is asked: float32, bfloat16, ...
    layout: Callable[[str], Layout]  # of weights in that format
    open: Callable[..., PreparedEngine]  # from prepared files, the model's config, and what the next lines name
    packages: tuple[str, ...] = ()  # that must be installed
    obstacle: Callable[[Asked], str | None] = lambda asked: None  # of this model or this dtype
    broken: Callable[[], str | None] = lambda: None  # why it does not work here; may take a while to find out
    quantises: tuple[str, ...] = ()  # what it quantises matrices to: int8, int4
    kv_cache_dtypes: bool = False  # whether ``open`` takes a ``kv_cache_dtype``
    max_lengths: bool = False  # whether ``open`` takes a ``max_length``, and it runs longrope's positions
    designs: bool = False  # whether it runs layers of every ``LayerDesign``, and not only a Llama's


def not_float32(dtype: torch.dtype) -> str | None:
    """The obstacle of an engine that computes in float32."""
    if dtype == torch.float32:
        return None
    name = str(dtype).removeprefix("torch.")
    return f"it computes in float32, not {name}; choose the dtype float32, or leave the dtype out"


# --- numba ---------------------------------------------------------------------------------------------------------


def numba_computes_in_half(dtype: torch.dtype, settled: bool) -> bool:
    """Whether numba's products are to be in float16: where it was asked for, and by itself where the CPU can."""
    return dtype == torch.float16 if settled else cpu.facts().computes_in_half


def _numba_weights(asked: Asked) -> str:
    if asked.packed:
        return asked.packed
    if asked.weights != "full":
        return asked.weights
    saved = saved_dtype(asked.config)
    if saved in ("bfloat16", "float16") and numba_computes_in_half(asked.dtype, asked.settled):
        return "float16"
    return "bfloat16" if saved == "bfloat16" else "float32"


def _numba_layout(weights: str) -> Layout:
    from outrider.kernels.numba import amx_products
    from outrider.models.engine import numba_weights, packed_weights, t5_weights

    if weights in QUANTISED:
        each = {"int8": 1.1, "int4": 0.8}[weights]  # bytes: the output matrix of the latter has eight bits
        return Layout(
            "numba", weights, packed_weights.FORMAT,
            lambda to, source, config: packed_weights.write_quantised(to, source, config, weights), bytes_each=each,
        )  # fmt: skip
    if weights not in FLOATS:
        return Layout("numba", weights, packed_weights.FORMAT, packed_weights.write_gguf)
    return Layout(
        "numba", weights, numba_weights.FORMAT,
        lambda to, source, config: (t5_weights if t5_like(config) else numba_weights).write(
            to, source, config, weights
        ),
        bytes_each=FLOATS[weights].itemsize,
        arrangement="amx" if weights == "bfloat16" and amx_products.AVAILABLE else "",
    )  # fmt: skip


def _open_numba(
    prepared: Prepared, config: Any, kv_cache_dtype: str = "auto", max_length: int | None = None
) -> PreparedEngine:
    if t5_like(config):
        from outrider.models.engine.t5_engine import T5Engine

        require(
            kv_cache_dtype in ("auto", "float32"),
            f"kv_cache_dtype {kv_cache_dtype!r} cannot be used: models of type {config.model_type!r} keep keys and "
            "values in float32; leave it out",
        )
        return T5Engine(prepared, config)
    from outrider.models.engine.numba_engine import NumbaEngine

    return NumbaEngine(prepared, config, kv_cache_dtype, max_length)


def _numba_obstacle(asked: Asked) -> str | None:
    saved = saved_dtype(asked.config)
    if saved not in FLOATS and asked.weights == "full":
        return f"it reads weights that were saved in {', '.join(FLOATS)}, and these are in {saved}; leave it out"
    if t5_like(asked.config):
        if asked.weights != "full":
            return f"models of type {asked.config.model_type!r} have no layers here in {asked.weights}; leave it out"
        if obstacle := T5Sizes.of(asked.config).obstacle:
            return obstacle
    elif obstacle := _llama_obstacle(Sizes.of(asked.config)):
        return obstacle
    if not asked.settled:
        return None
    if asked.weights != "full":
        return not_float32(asked.dtype)
    if asked.dtype == torch.bfloat16 and saved == "bfloat16":  # the weights that it reads; it computes in more
        return None
    if asked.dtype != torch.float16:
        return not_float32(asked.dtype)
    if saved == "float32":
        return "it does not round weights, and these are in float32; leave the dtype out, or choose float32"
    if cpu.facts().computes_in_half:
        return None
    return "this CPU does not compute in float16; choose the dtype float32, or leave the dtype out"


def _llama_obstacle(sizes: Sizes) -> str | None:
    if sizes.hidden % 16 or sizes.inner % 16 or sizes.heads * sizes.depth % 4 or sizes.depth % 2:
        return f"it runs layers of a multiple of 16, not of {sizes.hidden} and {sizes.inner}; leave it out"
    if sizes.heads % sizes.shared:
        return f"{sizes.heads} heads cannot share {sizes.shared} keys and values evenly; leave it out"
    if sizes.rotary % 2 or not 0 < sizes.rotary <= sizes.depth:
        return f"rotary positions of {sizes.rotary} numbers of {sizes.depth} have no layers here; leave it out"
    return None


def _numba_broken() -> str | None:
    if error := import_error():
        return f"numba cannot be imported ({error}); install versions of numba and numpy that fit, or leave it out"
    if not cpu.facts().fuses_multiplication:
        return "this CPU has no fused multiplication and addition; leave it out"
    return None


@cache
def import_error() -> str | None:
    """What numba says where it cannot be imported."""
    try:
        from numba import njit  # noqa: F401  it looks at the numpy it finds, and may refuse it
    except ImportError as error:
        return str(error)
    return None


BACKENDS: dict[str, Backend] = {
    "numba": Backend(
        _numba_weights,
        _numba_layout,
        _open_numba,
        ("numba",),
        _numba_obstacle,
        _numba_broken,
        QUANTISED,
        kv_cache_dtypes=True,
        max_lengths=True,
        designs=True,
    ),
}
"""By the names that ``engine=`` takes, in the order in which "auto" tries them; torch comes after all."""
