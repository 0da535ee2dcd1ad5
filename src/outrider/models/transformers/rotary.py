"""Rotary positions whose angles depend on the position only, for models that transformers scales by a run's largest.

``dynamic_rope_update`` of transformers changes the frequencies of a module when a run reaches beyond some position. An
engine is run on copies of these modules, which change no more: see ``models/positions.py``. Others who run the model
get transformers' own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from outrider.kernels.attached import attach, attached, detach
from outrider.models.positions import Positions, rotation_settings
from outrider.models.settings import offers, setting

_CHANGING = ("longrope", "dynamic")

_long: ContextVar[bool | None] = ContextVar("outrider_long_factors", default=None)


@contextmanager
def settled(long: bool) -> Iterator[None]:
    """Runs within have one set of frequencies: longrope's long factors, or what a model begins with."""
    before = _long.set(long)
    try:
        yield
    finally:
        _long.reset(before)


@dataclass(frozen=True)
class Copies:
    """Attached to a module of rotary positions: the same with frequencies that stay."""

    short: Any
    long: Any


def changes(module: Any) -> bool:
    """Whether a module's frequencies follow the runs."""
    kinds = _kinds(module)
    owned = all(offers(module, f"{_prefix(layers)}original_inv_freq") for layers in kinds)
    return owned and any(kind in _CHANGING for kind in kinds.values())


def _kinds(module: Any) -> dict[str, str]:
    """Of scaling, by the type of layers; "" where all have the same."""
    kinds = setting(module, "rope_type", {})
    return {"": kinds} if isinstance(kinds, str) else dict(kinds)


def _prefix(layers: str) -> str:
    """What names of a type of layers begin with in the module."""
    return f"{layers}_" if layers else ""


def obstacle(model: Any, positions: Positions) -> str | None:
    """None, or why a model cannot be run by long factors: its code is its own, and takes them by the run."""
    if not positions.long or any(changes(module) for module in model.modules()):
        return None
    return (
        "its positions beyond those of its first training are scaled by code that came with it; load it with a smaller "
        "max_length"
    )


def _copies(module: Any) -> Copies:
    """Those of a module, made once."""
    found = attached(module, Copies)
    if found is None:
        found = Copies(_copy(module, long=False), _copy(module, long=True))
        attach(module, found)
    return found


def forget(module: Any) -> None:
    """Drop the copies: its own frequencies may be moved or changed by then."""
    if attached(module, Copies) is not None:
        detach(module, Copies)


def _copy(module: Any, long: bool) -> Any:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    found, kinds = deepcopy(module), _kinds(module)
    for layers, kind in kinds.items():
        of_layers = {"layer_type": layers} if layers else {}
        name = f"{_prefix(layers)}inv_freq"
        first: Tensor = setting(module, f"{_prefix(layers)}original_inv_freq")
        frequencies = first.to(module.get_buffer(name).device)
        if long and kind == "longrope":
            beyond = int(rotation_settings(module.config)[layers]["original_max_position_embeddings"]) + 1
            scaled = ROPE_INIT_FUNCTIONS[kind](module.config, frequencies.device, seq_len=beyond, **of_layers)[0]
            frequencies = scaled.to(frequencies.dtype)
        found.register_buffer(name, frequencies.clone(), persistent=False)
    stays = {layers: "default" if kind in _CHANGING else kind for layers, kind in kinds.items()}
    found.rope_type = stays.get("", stays)
    return found


def forward(self: Any, *given: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """A module's own forward, on the copy that the run is to have."""
    long = _long.get()
    module = self
    if long is not None:
        module = _copies(self).long if long else _copies(self).short
    return type(self).forward(module, *given, **options)  # type: ignore[no-any-return]
