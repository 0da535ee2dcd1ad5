"""Quantises full weights in groups of 32 inputs of a row, for the products of ``kernels/numba/packed_products.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.errors import ModelCorrupt, require
from outrider.kernels.numba.packed_formats import CODES, FORMATS, UNIT, QuantisedRows, panel_table, panels
from outrider.kernels.numba.tiles import PANEL

_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Ranges that are tried for a group, relative to that of its weights: what lies beyond is clipped."""


def in_eight_bits(weight: Tensor) -> QuantisedRows:
    """A weight [out, in] in float32, with a scale for each group."""
    groups = _groups(weight)
    scales = (groups.abs().amax(-1) / 127).to(torch.float16)
    step = scales.to(torch.float32)[..., None]
    whole = (groups / step).nan_to_num(0.0).round().clamp(-127, 127).to(torch.int8)
    return QuantisedRows(FORMATS[CODES["Q8_0"]], whole.flatten(1).numpy(), scales.numpy())


def in_four_bits(weight: Tensor) -> QuantisedRows:
    """A weight [out, in] in float32, with a scale and a minimum for each group: those of the least squared error."""
    groups = _groups(weight)
    scales, minima = four_bit_steps(groups)
    return four_bit_rows(whole_numbers(groups, scales[..., None], minima[..., None]).flatten(1), scales, minima)


def four_bit_rows(whole: Tensor, scales: Tensor, minima: Tensor) -> QuantisedRows:
    """Whole numbers from 0 to 15 [out, in], and the scale and minimum of each group [out, groups]."""
    halves = (part.to(torch.float16).numpy() for part in (scales, minima))
    return QuantisedRows(FORMATS[CODES["Q4_1"]], whole.to(torch.uint8).numpy(), *halves)


def four_bit_steps(groups: Tensor) -> tuple[Tensor, Tensor]:
    """For groups of weights [..., n] the scale and minimum [...] of the least squared error, as float16 has them."""
    low, high = groups.amin(-1), groups.amax(-1)
    middle, reach = (low + high) / 2, (high - low) / 2
    best = torch.full_like(low, torch.inf)
    found = [torch.zeros_like(low)] * 2
    for shrink in _SHRINKS:
        minimum = (middle - shrink * reach).to(torch.float16).to(torch.float32)
        scale = (2 * shrink * reach / 15).to(torch.float16).to(torch.float32)
        wide, start = scale[..., None], minimum[..., None]
        error = (whole_numbers(groups, wide, start) * wide + start - groups).square().sum(-1)
        better = error < best
        best = torch.where(better, error, best)
        found = [torch.where(better, new, old) for new, old in zip((scale, minimum), found, strict=True)]
    return found[0], found[1]


def whole_numbers(weight: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """The nearest of sixteen steps."""
    return ((weight - minimum) / scale).nan_to_num(0.0).round().clamp(0, 15)


Quantise = Callable[[Tensor], QuantisedRows]


def matrix_of(weight: Any, quantise: Quantise) -> np.ndarray[Any, Any]:
    """A weight [out, in], which is read some rows at a time, as ``packed_products.py`` reads it: bytes."""
    outputs, inputs = weight.shape
    made: list[np.ndarray[Any, Any]] = []
    for first in range(0, outputs, _PIECE * PANEL):
        rows = weight[first : first + _PIECE * PANEL].detach().to(torch.float32)
        packed = quantise(torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % PANEL)))
        made.append(panels(packed).ravel())
    table = panel_table([CODES[packed.form.name]] * -(-outputs // PANEL), inputs)
    found: np.ndarray[Any, Any] = np.zeros(table[0, 0] + sum(map(len, made)), np.uint8)
    found[: table.nbytes] = table.view(np.uint8).ravel()
    found[table[0, 0] :] = np.concatenate(made)
    return found


_PIECE = 32
"""Panels packed at a time: what is made on the way stays small, and is used again for the next."""


def require_finite(weight: Tensor) -> None:
    require(bool(weight.isfinite().all()), "weights that are not finite; the checkpoint is damaged", ModelCorrupt)


def _groups(weight: Tensor) -> Tensor:
    """[out, in] -> [out, groups, 32], filled up with zeros."""
    require_finite(weight)
    return torch.nn.functional.pad(weight, (0, -weight.shape[1] % UNIT)).view(len(weight), -1, UNIT)
