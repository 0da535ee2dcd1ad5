"""Weights of eight bits: near what they stand for, and rows that do not see each other."""

from __future__ import annotations

import pytest
import torch

from outrider.kernels import int8_linear

pytestmark = pytest.mark.cpu_paths

DTYPES = [torch.float32, torch.bfloat16]


def _case(outputs: int, inputs: int, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(outputs + inputs)
    return torch.randn(outputs, inputs) * 0.05, torch.randn(rows, inputs).to(dtype)


def test_a_weight_is_off_by_at_most_half_a_step() -> None:
    weight, _ = _case(96, 64, 1, torch.float32)
    found = int8_linear.quantised(weight)
    step = weight.abs().amax(1) / 127
    assert ((found.to_float() - weight).abs() <= step[:, None] * 0.501).all()
    assert found.values.dtype == torch.int8
    assert found.values.abs().amax(1).eq(127).all()


def test_a_row_of_zeros_stays_zero() -> None:
    weight = torch.zeros(4, 32)
    assert int8_linear.product(torch.ones(2, 32), int8_linear.quantised(weight)).eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 9, 16])
def test_the_product_is_that_of_the_rounded_weight(rows: int, dtype: torch.dtype) -> None:
    weight, x = _case(960, 576, rows, dtype)
    kept = int8_linear.quantised(weight, dtype)
    exact = x.double() @ kept.to_float().double().T
    found = int8_linear.product(x, kept)
    assert found.dtype == dtype and found.shape == (rows, 960)
    assert (found - exact).norm() <= (5e-3 if dtype == torch.bfloat16 else 1e-5) * exact.norm()


def test_a_bias_is_added_and_leading_dimensions_are_kept() -> None:
    weight, x = _case(32, 64, 6, torch.float32)
    kept, bias = int8_linear.quantised(weight), torch.randn(32)
    expected = int8_linear.product(x, kept) + bias
    assert torch.equal(int8_linear.product(x.view(2, 3, 64), kept, bias), expected.view(2, 3, 32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (576, 1536), (64, 48)])
@pytest.mark.parametrize("rows", [1, 2, 9, 16])
def test_a_row_does_not_depend_on_the_others(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """To the bit: other neighbours, and another place among them."""
    weight, x = _case(outputs, inputs, rows, dtype)
    kept = int8_linear.quantised(weight, dtype)
    before = int8_linear.product(x, kept)
    for row in range(rows):
        changed = torch.randn(rows, inputs).to(dtype) * 100
        place = (row + 1) % rows
        changed[place] = x[row]
        assert torch.equal(int8_linear.product(changed, kept)[place], before[row])
