"""Linear layers with weights laid out once for the CPU's matrix kernels.

A run of W rows through an ordinary linear layer lays the weights out anew every time, which costs more than the
arithmetic. Packed once, nine rows cost little more than one: what makes fixed width affordable on a CPU.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from outrider.kernels.attached import attach, attached, expect
from outrider.runtime import cpu


@dataclass(eq=False)
class Joined:
    """Attached to the module that owns linear layers which read the same input: their weights as one."""

    weight: Tensor  # [out of all of them, in], as it is or packed
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


@dataclass(eq=False)
class PartOf:
    """Attached to a linear layer that was joined with others: which columns of their product are its own."""

    joined: Joined
    begin: int


@dataclass(eq=False)
class Packed:
    """Attached to a linear layer that was packed by itself."""

    weight: Tensor


def pack(model: nn.Module, rows: int, *, release: bool = False, keep: Tensor | None = None) -> int:
    """Pack every linear layer of a CPU model for runs of about ``rows`` rows -> how many were packed.

    For inference only: a packed layer no longer sees changes of its weight. With ``release`` a weight that was
    copied in packing is given up, unless another layer shares it or it is ``keep``, which somebody reads as it is: see
    ``released``. Does nothing where this build of torch has no such kernels or they would be slower.
    """
    linear = [module for module in model.modules() if type(module) is nn.Linear and module.weight.device.type == "cpu"]
    holders = _holders(model)
    count = 0
    for module in linear:
        if attached(module, PartOf) is not None:  # laid out with the layers it is joined with
            continue
        laid_out = packed(module.weight.detach(), rows)
        if laid_out.is_mkldnn:
            attach(module, Packed(laid_out))
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]
            count += 1
            if release and module.weight is not keep and holders[module.weight.data_ptr()] == 1:
                module.weight = released(module.weight)
    return count


def _holders(model: nn.Module) -> dict[int, int]:
    """How many modules use the memory at an address as a parameter: an output layer is often the embedding, too."""
    count: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            count[parameter.data_ptr()] = count.get(parameter.data_ptr(), 0) + 1
    return count


def released(weight: Tensor) -> nn.Parameter:
    """What stands for a weight that is kept in another layout: its shape and dtype without its memory."""
    return nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)


def packed(weight: Tensor, rows: int) -> Tensor:
    """A weight [out, in] laid out for products with about ``rows`` rows; as it is where that is no faster.

    As it is, too, where the bits of a row would depend on its place among the others: a token stands in another place
    with guesses before it than without.
    """
    if not worth_packing(rows):
        return weight
    try:
        laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        return laid_out if rows == 1 or _batch_invariant(laid_out, weight, rows) else weight
    except (RuntimeError, NotImplementedError, AttributeError):
        return weight


FOUND: dict[tuple[int, int, torch.dtype, int], bool] = {}
"""What ``_batch_invariant`` found out, by size, dtype and rows of a product: kernels are chosen by these."""


def _batch_invariant(laid_out: Tensor, weight: Tensor, rows: int) -> bool:
    """Whether a row of a product has the same bits in every place. With AVX2 some have not, in float32."""
    out, inputs = weight.shape
    key = out, inputs, weight.dtype, rows
    if key not in FOUND:
        FOUND[key] = all(_shifted_alike(laid_out, inputs, count, weight.dtype) for count in (rows, 4 * rows))
    return FOUND[key]


def _shifted_alike(weight: Tensor, inputs: int, count: int, dtype: torch.dtype) -> bool:
    x = torch.randn((count, inputs), generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.equal(product(x.roll(1, 0), weight, None).roll(-1, 0), product(x, weight, None))


def warn_of_other_bits(rows: int, dtype: torch.dtype) -> None:
    """Say so where this process's ordinary products, which attention is made of as well, are not batch-invariant."""
    if rows > 1 and not all(_shifted_alike(torch.ones(64, 64, dtype=dtype), 64, count, dtype) for count in (rows, 36)):
        warnings.warn(
            "torch's matrix products give a token other bits in another place of a run on this CPU, so that text with "
            "and without guesses may differ where two tokens are all but equal. Import outrider before anything "
            "computes with torch, or set MKL_CBWR=AVX2,STRICT in the environment",
            stacklevel=4,
        )


def worth_packing(rows: int) -> bool:
    """By what the CPU is, not by a clock: a layout decides bits, and two processes must decide alike.

    On ARM a single row is a product of a matrix and a vector, which reads ordinary weights at the speed of memory and
    packed ones at half of it; from two rows on packed weights are twice as fast. On x86 packing always pays.
    """
    facts = cpu.facts()
    return facts.packs and (rows > 1 or not facts.arm)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer with a weight that ``packed`` gave."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]
    return nn.functional.linear(x, weight, bias)


def _forward(self: Any, x: Tensor) -> Tensor:
    return product(x, expect(self, Packed).weight, self.bias)


def packed_layers(model: nn.Module) -> tuple[int, int]:
    """How many linear layers are packed, by themselves or joined with others, and how many there are."""
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    return sum(_is_packed(module) for module in linear), len(linear)


def _is_packed(linear: nn.Module) -> bool:
    part = attached(linear, PartOf)
    return attached(linear, Packed) is not None if part is None else part.joined.weight.is_mkldnn
