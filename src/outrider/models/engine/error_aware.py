"""Rounds weights to four bits so that a product's outputs change little, not its weights: GPTQ (Frantar et al. 2023).

Columns are rounded one after another. What rounding one changes in the outputs is made up for by those that are not
rounded yet, as far as their inputs go together with its inputs. Which do, a little text tells: ``calibration.py``.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.errors import ModelCorrupt, require
from outrider.kernels.numba.packed_formats import UNIT, QuantisedRows
from outrider.models.engine.quantised import four_bit_rows, four_bit_steps, require_finite, whole_numbers
from outrider.models.engine.sizes import PartNames, Sizes
from outrider.models.engine.weight_files import Tensors
from outrider.models.llama_layer import PRODUCTS, layer_name
from outrider.models.transformers import calibration
from outrider.runtime.memory import available_bytes

_DAMPING = 0.01
"""Added to what inputs have by themselves, as a part of the mean: a little text does not show all of them."""

_BLOCK = 4 * UNIT
"""Columns whose effect on all later ones is worked out at once."""


def quantised_layers(source: Path, config: Any) -> dict[str, QuantisedRows]:
    """All matrices of a checkpoint's layers in four bits, by the names of their tensors; none where memory is short."""
    if (needed := calibration.needed_bytes(source)) > (free := available_bytes()):
        warnings.warn(
            f"weights='int4': {source.name} is rounded weight by weight, since rounding by what text makes of them "
            f"needs {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are available",
            stacklevel=2,
        )
        return {}
    where, tensors, found = PartNames.of(config), Tensors(source), dict[str, QuantisedRows]()
    products = {}  # by the module whose inputs tell: tensors that read the same
    for layer in range(Sizes.of(config).layers):
        for parts in PRODUCTS.values():
            names = dict.fromkeys(where(f"{layer_name(layer)}.{part}.weight").name for part in parts)
            products[next(iter(names)).removesuffix(".weight")] = names

    def quantise(module: str, moments: Tensor) -> None:
        sound = bool(moments.isfinite().all())
        require(sound, f"{module} is given no numbers; the checkpoint is damaged", ModelCorrupt)
        factor = inputs_factor(moments)
        for name in products[module]:
            found[name] = in_four_bits(tensors.tensor(name).to(torch.float32), factor)

    calibration.run(source, list(products), quantise)
    return found


def in_four_bits(weight: Tensor, factor: Tensor) -> QuantisedRows:
    """A weight [out, in] in float32; ``factor`` [in, in]: of the inverse of its inputs' moments."""
    require_finite(weight)
    spare = -weight.shape[1] % UNIT
    left, factor = torch.nn.functional.pad(weight, (0, spare)), torch.nn.functional.pad(factor, (0, spare, 0, spare))
    factor.diagonal()[weight.shape[1] :] = 1
    whole, steps = torch.empty_like(left), []
    for first in range(0, left.shape[1], _BLOCK):
        end = min(first + _BLOCK, left.shape[1])
        missed = torch.empty(len(left), end - first)  # by column, in units of its own part of the factor
        for column in range(first, end):
            if column % UNIT == 0:
                steps.append(four_bit_steps(left[:, column : column + UNIT]))
            scale, minimum = steps[-1]
            now = left[:, column].clone()
            whole[:, column] = whole_numbers(now, scale, minimum)
            error = (now - whole[:, column] * scale - minimum) / factor[column, column]
            left[:, column + 1 : end] -= error[:, None] * factor[column, column + 1 : end]
            missed[:, column - first] = error
        left[:, end:] -= missed @ factor[first:end, end:]
    scales, minima = (torch.stack(parts, 1) for parts in zip(*steps, strict=True))
    return four_bit_rows(whole, scales, minima)


def inputs_factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of moments [in, in]. An input that was always zero has no say."""
    wide = moments.to(torch.float64)
    own = wide.diagonal()
    own[own == 0] = 1
    own += _DAMPING * own.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(wide))
    found: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return found.to(torch.float32)
