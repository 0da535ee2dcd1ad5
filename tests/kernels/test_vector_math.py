"""Activations and bounds of compiled layers, sixteen numbers at a time: torch's functions, and finite everywhere."""

from __future__ import annotations

import pytest
import torch

from outrider.runtime import cpu

pytest.importorskip("numba")

from outrider.kernels.numba.layer_math import rotate
from outrider.kernels.numba.tiles import PANEL
from outrider.kernels.numba.vector_math import cap, gelu, silu

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

NUMBERS = torch.cat([torch.linspace(-12, 12, 5 * PANEL - 6), torch.tensor([-1e30, -300.0, -0.0, 1e-20, 300.0, 1e30])])


@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_gates(name: str) -> None:
    """Catches the constants of the formula, and an exponential that overflows."""
    compiled, reference = {
        "silu": (silu, torch.nn.functional.silu),
        "gelu": (gelu, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    }[name]
    up = torch.randn(len(NUMBERS), generator=torch.Generator().manual_seed(0))
    found = torch.full_like(NUMBERS, float("nan"))
    for start in range(0, len(NUMBERS), PANEL):
        gate, other, to = (tensor[start:].data_ptr() for tensor in (NUMBERS, up, found))
        compiled(gate, other, to)
    expected = reference(NUMBERS.double()) * up
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("most", [0.5, 30.0])
def test_caps(most: float) -> None:
    found = NUMBERS.clone()
    for start in range(0, len(NUMBERS), PANEL):
        cap(found[start:].data_ptr(), torch.tensor(most).numpy()[()])
    expected = most * torch.tanh(NUMBERS.double() / most)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-7 * most)
    assert float(found.abs().max()) <= most


@pytest.mark.parametrize("half", [8, 16, 24, 32])
def test_rotary_positions(half: int) -> None:
    """By vectors, what is left of them one by one, and the numbers behind both as they are. Catches a wrong sign."""
    drawn = torch.Generator().manual_seed(half)
    line, angles = torch.randn(2 * half + 3, generator=drawn), torch.randn(half, generator=drawn)
    cos, sin, found = angles.cos(), angles.sin(), torch.full_like(line, float("nan"))
    rotate(line.numpy(), cos.numpy(), sin.numpy(), found.numpy())
    first, second, rest = line[:half], line[half : 2 * half], line[2 * half :]
    expected = torch.cat([first * cos - second * sin, second * cos + first * sin, rest])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
